"""Files of `padless bench` and `padless audit`: what is read, what may be absent, what is refused."""

import json
from pathlib import Path

import pytest

from padless.auditing.report import AuditReport, CheckResult
from padless.errors import PadlessError
from padless.report.given import read_audit, read_bench

BENCH = {
    "machine": "2 cores",
    "date": "2026-01-02",
    "arms": [
        {"name": "padded", "real_tokens_per_second": 100.0, "seconds": 2, "peak_memory": 1 << 30, "unknown": [1]},
        {"name": "packed", "real_tokens_per_second": 450.0},
    ],
    "unknown": {"of": "another version"},
}


def write(path: Path, value: object) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_ratios_follow_from_throughputs_unless_they_are_given(tmp_path: Path) -> None:
    bench = read_bench(write(tmp_path / "b.json", BENCH))
    assert [bench.ratio_of(arm) for arm in bench.arms] == [1.0, 4.5]
    assert bench.best() == (bench.arms[1], 4.5)
    assert bench.savings == ()
    assert bench.regime is None
    given = {**BENCH, "arms": [{"name": "a", "ratio": 1.0}, {"name": "b", "ratio": 3.0}]}
    assert [arm.ratio for arm in read_bench(write(tmp_path / "b.json", given)).arms] == [1.0, 3.0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not what `padless bench step --json` prints"),
        ("[]", "is not what `padless bench step --json` prints: Expected `object`"),
        ({"arms": [{"seconds": 1}]}, r"missing required field `name` - at `$.arms[0]`"),
        ({"arms": [{"name": "a", "seconds": "fast"}]}, r"at `$.arms[0].seconds`"),
        ({"subject": "model", "results": []}, "holds no arms, no savings curve and no regime"),
        ('{"savings": [{"padding": NaN, "time_saved": 0}]}', r"at `$.savings[0].padding`"),
        ("[" * 100_000, "is not what"),
    ],
)
def test_another_file_is_refused_with_the_reason(tmp_path: Path, content: object, words: str) -> None:
    with pytest.raises(PadlessError) as refused:
        read_bench(write(tmp_path / "b.json", content))
    assert words in str(refused.value)
    assert "b.json" in str(refused.value)


def test_a_missing_file_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(PadlessError, match=r"cannot read .*none.json: No such file.*padless audit --json > "):
        read_audit(tmp_path / "none.json")


def test_what_the_audit_writes_is_read(tmp_path: Path) -> None:
    results = (
        CheckResult(name="isolation", verdict="proven", finding="fine", measured=0.0, tolerance=0.0),
        CheckResult(name="parity", verdict="violated", finding="off", measured=float("nan"), mechanism="segments-mix"),
        CheckResult(name="state", verdict="not-applicable", finding="no state", details={"matrix": [[1]]}),
    )
    written = AuditReport(subject="Toy", results=results, settings={"seed": 0})
    audit = read_audit(write(tmp_path / "a.json", written.to_json()))
    assert audit.subject == "Toy"
    assert [(c.name, c.verdict, c.finding) for c in audit.results] == [(r.name, r.verdict, r.finding) for r in results]
    assert audit.results[1].remedy == results[1].remedy != ""
    assert audit.results[1].measured is None, "what is no number was not measured"
    assert (audit.count("proven"), audit.count("violated"), audit.count("undecided")) == (1, 1, 0)
