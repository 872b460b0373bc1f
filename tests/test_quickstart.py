"""The quickstart: its corpus is real and always the same, and every step runs."""

import ast
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from padless.report.given import read_bench

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture(autouse=True)
def examples_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


MODULE = '''
class Shape:
    @property
    def area(self):
        """Width times height."""
        # in square metres
        return self.w * self.h

def outer(x):
    """Says
    more."""
    def inner(y):
        "Short."
        return y

    return inner(x)

def no_docstring(): return 1
def one_line(): "doc"; return 1
def only_docstring():
    """Nothing else."""
'''


def test_functions_with_docstrings_are_cut_where_the_body_begins():
    from stdlib_corpus import functions_of

    found = list(functions_of(MODULE.encode(), "m.py"))
    assert [record["source"] for record in found] == ["m.py:4", "m.py:9", "m.py:12"]
    assert found[0]["prompt"] == 'def area(self):\n    """Width times height."""'
    assert found[0]["completion"] == "\n    # in square metres\n    return self.w * self.h\n"
    assert found[1]["prompt"] == 'def outer(x):\n    """Says\n    more."""'
    assert found[1]["completion"].endswith("\n\n    return inner(x)\n")
    assert list(functions_of(b"def f(:", "m.py")) == list(functions_of(b"\xff", "m.py")) == []


def samples() -> Iterator[dict[str, str]]:
    from stdlib_corpus import functions

    for package in ("json", "email", "xmlrpc"):
        yield from functions(Path(sysconfig.get_path("stdlib")) / package)


def test_the_corpus_is_code_and_always_in_the_same_order():
    found = list(samples())
    assert found == list(samples())
    assert len(found) > 100
    assert not any(record["prompt"].endswith("\n") for record in found)
    for record in found:
        [function] = ast.parse(record["prompt"] + record["completion"]).body
        assert ast.get_docstring(function)


@pytest.mark.slow
def test_the_quickstart_runs_from_nothing_to_verified_rows(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "quickstart.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    out = tmp_path / "quickstart-out"
    assert {path.name for path in out.iterdir()} == {
        *("functions.jsonl", "tokenizer.json", "store", "audit.json", "bench.json", "report.html")
    }
    for step in ("1. A corpus", "2. A byte-level BPE", "3. Pack", "4. Verify", "5. Audit", "6. Train", "7. Measure"):
        assert step in done.stdout
    [apart] = re.findall(r"the curves differ by at most (\S+) of the loss", done.stdout)
    assert 0 < float(apart) < 1e-5
    arms = {arm.name: arm for arm in read_bench(out / "bench.json").arms}
    page = (out / "report.html").read_text()
    assert f"{arms['padless'].ratio:.2f}x" in page
    assert "parity" in page
