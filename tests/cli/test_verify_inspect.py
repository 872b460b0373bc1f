"""`padless verify` and `padless inspect`: exit codes, and what a person reads."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from padless import pack

Padless = Callable[..., tuple[int, str, str]]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Five samples, one of them split, one row with padding."""
    pairs = [("ab", "cde"), ("x", "y"), ("long ", "z" * 30), ("pq", "rs"), ("m", "n")]
    source = tmp_path / "d.jsonl"
    source.write_text("".join(json.dumps({"prompt": p, "completion": c}) + "\n" for p, c in pairs))
    pack(source, tokenizer="bytes", capacity=16, output=tmp_path / "out", oversize="split", align=2)
    return tmp_path / "out"


def test_a_clean_store_exits_with_0_and_says_what_was_checked(padless: Padless, store: Path) -> None:
    code, out, err = padless("verify", store)
    assert (code, err) == (0, "")
    assert out.count("holds  ") == 5
    assert "FAILS" not in out
    code, out, _ = padless("verify", store, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["ok"] is True
    assert [check["name"] for check in found["checks"]] == ["files", "counts", "tokens", "targets", "plans"]
    assert padless("verify", store, "-q") == (0, "", "")


def test_a_damaged_store_exits_with_1_and_names_the_file(padless: Padless, store: Path) -> None:
    shard = store / "tokens-00000.arrow"
    shard.write_bytes(shard.read_bytes()[:-1] + b"!")
    code, out, err = padless("verify", store)
    assert code == 1
    assert "FAILS  files" in out
    assert "tokens-00000.arrow has sha256" in out
    assert "is not what its manifest says (files)" in err
    code, out, _ = padless("verify", store, "--json")
    assert code == 1
    assert json.loads(out)["ok"] is False


def test_no_store_is_wrong_use(padless: Padless, tmp_path: Path) -> None:
    code, _, err = padless("verify", tmp_path / "nowhere")
    assert code == 2
    assert "does not exist" in err


def test_a_row_shows_segments_text_targets_and_padding(padless: Padless, store: Path) -> None:
    code, out, _ = padless("inspect", store, "--json")
    assert code == 0
    [row] = json.loads(out)["rows"]
    slots = sum(end - start for start, end in (segment["slots"] for segment in row["segments"]))
    alignment = sum(segment["alignment_padding"] for segment in row["segments"])
    assert slots + alignment + row["tail_padding"] == 16
    for index in range(4):
        code, out, _ = padless("inspect", store, "--row", index)
        assert code == 0
        assert f"row {index}" in out
        assert "segment 1  slots 0.." in out
        assert "tail padding" in out


def test_targets_are_marked_even_without_colours(padless: Padless, store: Path) -> None:
    _, out, _ = padless("inspect", store, "--sample", 0)
    lines = out.splitlines()
    assert "    ab" in lines
    assert "  > cde<eod>" in lines


def test_a_sample_is_found_in_every_row_that_holds_a_piece(padless: Padless, store: Path) -> None:
    code, out, _ = padless("inspect", store, "--sample", 2)
    assert code == 0
    assert out.startswith(f"sample 2: record 3 of {store.parent}/d.jsonl, 36 tokens; in rows ")
    assert out.count("sample 2, tokens ") == 3
    for piece in ("tokens 0..16 of 36", "tokens 16..32 of 36", "tokens 32..36 of 36"):
        assert piece in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--row", 99], "rows count from 0"),
        (["--row", -1], "rows count from 0"),
        (["--sample", 5], "samples count from 0"),
        (["--row", 0, "--sample", 0], "not both"),
        (["--capacity", 7], "has no plan for capacity 7 (it has: 16)"),
    ],
)
def test_wrong_use(padless: Padless, store: Path, arguments: list, words: str) -> None:
    code, _, err = padless("inspect", store, *arguments)
    assert code == 2
    assert words in err


def test_a_file_is_no_store(padless: Padless, store: Path) -> None:
    for command in ("verify", "inspect"):
        code, _, err = padless(command, store / "manifest.json")
        assert code == 2
        assert "is not a padless store" in err


def test_a_manifest_that_cannot_be_read_is_a_violation(padless: Padless, store: Path) -> None:
    (store / "manifest.json").write_text("{")
    code, _, err = padless("verify", store)
    assert code == 1
    assert "is not a manifest" in err


def test_the_only_row_says_that_everything_is_in_it(padless: Padless, tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"text": "abc"}\n')
    pack(tmp_path / "d.jsonl", tokenizer="bytes", capacity=16, output=tmp_path / "one")
    _, out, _ = padless("inspect", tmp_path / "one")
    assert "12 slots of tail padding: every sample is in this row" in out
