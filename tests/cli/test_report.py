"""`padless report`: what it writes, what it prints, what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from padless import TokenStore, pack, plan

Padless = Callable[..., tuple[int, str, str]]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    source = tmp_path / "d.jsonl"
    source.write_text("".join(json.dumps({"prompt": "ab" * (n % 9), "completion": "c"}) + "\n" for n in range(60)))
    pack(source, tokenizer="bytes", capacity=32, output=tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    return Path("store")


def test_one_file_is_written_and_its_path_is_said(padless: Padless, store: Path) -> None:
    code, out, err = padless("report", store)
    assert (code, out) == (0, "")
    assert err.startswith("Wrote report.html (")
    assert Path("report.html").read_text().startswith("<!doctype html>")
    assert padless("report", store, "-o", "new/folder/r.html", "-q") == (0, "", "")
    assert Path("new/folder/r.html").read_bytes() == Path("report.html").read_bytes()


def test_drawings_and_tables_come_without_the_page_unless_it_is_asked_for(padless: Padless, store: Path) -> None:
    code, out, err = padless("report", store, "--svg", "drawn", "--markdown")
    assert code == 0
    assert "| rows | 60 |" in out
    assert sorted(path.name for path in Path("drawn").iterdir()) == [
        "balance.svg",
        "fill.svg",
        "lengths.svg",
        "segments.svg",
        "waste.svg",
    ]
    assert err.count("Wrote drawn/") == 5
    assert not Path("report.html").exists()
    code, _, _ = padless("report", store, "--markdown", "-o", "report.html")
    assert Path("report.html").exists()


def test_bench_and_audit_are_shown(padless: Padless, store: Path) -> None:
    arms = [{"name": "padded", "real_tokens_per_second": 10}, {"name": "packed", "real_tokens_per_second": 35}]
    Path("b.json").write_text(json.dumps({"arms": arms, "savings": [{"padding": 0.5, "time_saved": 0.4}]}))
    check = {"name": "isolation", "verdict": "violated", "finding": "segment 2 moved", "mechanism": "no-segment-mask"}
    Path("a.json").write_text(json.dumps({"subject": "Toy", "results": [check]}))
    code, out, _ = padless("report", store, "--bench", "b.json", "--audit", "a.json", "--svg", "d", "--markdown")
    assert code == 0, "a report shows a violation, it is not one"
    assert "| packed | - | 35 | 3.50x | - | - |" in out
    assert "- isolation: violated: segment 2 moved" in out
    assert {"throughput.svg", "savings.svg"} <= {path.name for path in Path("d").iterdir()}


def test_the_plan_and_the_row_can_be_chosen(padless: Padless, store: Path) -> None:
    opened = TokenStore(store)
    opened.add_plan(plan(opened.lengths, 64))
    code, _, err = padless("report", store)
    assert code == 2
    assert "plans for capacities 32, 64; say which" in err
    assert padless("report", store, "--capacity", 64, "--row", 2)[0] == 0
    page = Path("report.html").read_text()
    assert "rows of 64 slots" in page
    assert "Row 2 of the plan" in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["store", "--row", 999], "rows count from 0"),
        (["store", "--bench", "none.json"], "padless bench step --json"),
        (["store", "--audit", "d.jsonl"], "d.jsonl is not what `padless audit --json` prints"),
        (["store", "-o", "d.jsonl/r.html"], "cannot write d.jsonl/r.html"),
    ],
)
def test_wrong_use_is_one_line_and_writes_nothing(
    padless: Padless, store: Path, arguments: list[object], words: str
) -> None:
    before = sorted(Path().rglob("*"))
    code, out, err = padless("report", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert sorted(Path().rglob("*")) == before
