"""`padless plan`: the calculator, comparisons, stores, and one clear line for impossible input."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from padless import LengthHistogram, Plan, TokenStore, pack
from padless.planning import STRATEGIES, check_plan

Padless = Callable[..., tuple[int, str, str]]
KEYS = [
    *("rows", "lower_bound", "bound_by", "gap", "efficiency", "packing_factor", "slots", "real_tokens"),
    *("tail_padding", "alignment_padding", "split_samples", "truncated_tokens", "dropped_samples"),
    *("segments_per_row_max", "seconds"),
]
LENGTHS = [2048, 512, 256, 128]


@pytest.fixture
def written(tmp_path: Path) -> dict[str, Path]:
    """The same lengths in every kind of file."""
    paths = {kind: tmp_path / f"lengths.{kind}" for kind in ("npy", "npz", "json", "csv", "parquet")}
    np.save(paths["npy"], np.array(LENGTHS))
    LengthHistogram.of(LENGTHS).save(paths["npz"])
    paths["json"].write_text(json.dumps({"lengths": LENGTHS}))
    table = pa.table({"tokens": LENGTHS})
    pyarrow.csv.write_csv(table, paths["csv"])
    pyarrow.parquet.write_table(table, paths["parquet"])
    return paths


@pytest.mark.parametrize("kind", ["npy", "npz", "json", "csv", "parquet"])
def test_every_kind_of_file_gives_the_same_numbers(kind: str, padless: Padless, written: dict[str, Path]) -> None:
    code, out, err = padless("plan", written[kind], "-c", 2048, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert list(found)[: len(KEYS)] == KEYS
    assert {"spread", "steps"} == set(found) - set(KEYS)
    expected = {"rows": 2, "lower_bound": 2, "gap": 0.0, "slots": 4096, "real_tokens": 2944, "tail_padding": 1152}
    assert {key: found[key] for key in expected} == expected
    assert found["steps"]["rows_for_same_tokens"] == 4.0


def test_a_person_reads_waste_certificate_and_steps(padless: Padless, written: dict[str, Path]) -> None:
    code, out, err = padless("plan", written["npy"], "-c", 2048)
    assert (code, err) == (0, "")
    for fact in (
        "64.06%",
        "28.12%",
        "5,248",
        "1,152",
        "8,388,608",
        "2,269,184",
        "2 rows, optimal: the bound L1 is met",
    ):
        assert fact in out
    assert "rows per step" in out
    assert padless("plan", written["npy"], "-c", 2048, "-q") == (0, "", "")


def test_comparison_runs_every_strategy_and_saves_nothing(padless: Padless, written: dict[str, Path]) -> None:
    code, out, _ = padless("plan", written["npy"], "-c", 2048, "--compare")
    assert code == 0
    shown = set(STRATEGIES) - {"lpfhp", "auto"}
    assert all(f"\n{name} " in out or f"  {name}: " in out for name in shown)
    assert "nnlshp is for rows of at most" in out
    code, out, _ = padless("plan", written["npz"], "-c", 2048, "--compare", "--json")
    found = json.loads(out)
    assert set(found) == shown
    assert found["best-fit-decreasing"]["rows"] == 2
    assert "a histogram has none" in found["next-fit"]


def test_a_plan_can_be_saved(padless: Padless, written: dict[str, Path], tmp_path: Path) -> None:
    code, out, _ = padless("plan", written["csv"], "-c", 2048, "--align", 64, "-o", tmp_path / "p.npz")
    assert code == 0
    assert "p.npz" in out
    check_plan(Plan.load(tmp_path / "p.npz"), np.array(LENGTHS))
    code, _, err = padless("plan", written["npz"], "-c", 2048, "-o", tmp_path / "q.npz")
    assert code == 2
    assert "a histogram has no sample ids" in err


def test_a_store_is_planned_again_without_tokenizing(padless: Padless, tmp_path: Path) -> None:
    source = tmp_path / "d.jsonl"
    source.write_text("".join(json.dumps({"text": "x" * n}) + "\n" for n in (3, 9, 4, 12, 7)))
    pack(source, tokenizer="bytes", capacity=16, output=tmp_path / "out")
    code, out, _ = padless("plan", tmp_path / "out", "-c", 32, "--strategy", "first-fit")
    assert code == 0
    assert "Wrote" in out
    store = TokenStore(tmp_path / "out")
    assert [entry.capacity for entry in store.plans()] == [16, 32]
    assert store.plan(32).spec.strategy == "first-fit"
    check_plan(store.plan(32), store.lengths)
    assert padless("verify", tmp_path / "out")[0] == 0
    padless("plan", tmp_path / "out", "-c", 64, "--compare")
    assert [entry.capacity for entry in TokenStore(tmp_path / "out").plans()] == [16, 32]


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        ("[5, 9]", ["-c", 8], "1 of 2 samples are longer than a row of 8 (#1: 9)"),
        ("[5, 0]", ["-c", 8], "1 of 2 lengths are below 1"),
        ("[5, -3]", ["-c", 8], "1 of 2 lengths are below 1"),
        ("[5, NaN]", ["-c", 8], "are not whole numbers"),
        ("[5, 1.5]", ["-c", 8], "are not whole numbers"),
        ('["a"]', ["-c", 8], "must be whole numbers"),
        ("[]", ["-c", 8], "there is nothing to plan"),
        ("[5]", ["-c", 8, "--align", 16], "align 16 is larger than the capacity 8"),
        ("[5]", ["-c", 0], "capacity must be at least 1"),
        ("[5]", ["-c", 8, "--strategy", "best"], "no strategy is called 'best'"),
        ("[5]", ["-c", 8, "--rows-per-step", 0], "--rows-per-step is at least 1"),
        ('{"a": [1], "b": [2]}', ["-c", 8], "choose an entry with --column: 'a', 'b'"),
        ("{", ["-c", 8], "not JSON"),
    ],
)
def test_impossible_input_gets_one_clear_line(
    text: str, arguments: list, says: str, padless: Padless, tmp_path: Path
) -> None:
    (tmp_path / "l.json").write_text(text)
    code, out, err = padless("plan", tmp_path / "l.json", *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_files_that_hold_no_lengths(padless: Padless, tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_text("1\n")
    (tmp_path / "l.npy").write_bytes(b"no")
    (tmp_path / "l.csv").write_text("a,b\n1,2\n,3\n")
    assert "of no kind that lengths come from" in padless("plan", tmp_path / "l.txt", "-c", 8)[2]
    assert "is not a file" in padless("plan", tmp_path / "m.npy", "-c", 8)[2]
    assert "without pickle" in padless("plan", tmp_path / "l.npy", "-c", 8)[2]
    assert "say which column" in padless("plan", tmp_path / "l.csv", "-c", 8)[2]
    assert (
        "1 of 2 lengths in column 'a' are missing" in padless("plan", tmp_path / "l.csv", "-c", 8, "--column", "a")[2]
    )
    assert "no column 'c'; there are a, b" in padless("plan", tmp_path / "l.csv", "-c", 8, "--column", "c")[2]
    assert padless("plan", tmp_path / "l.csv", "-c", 8, "--column", "b")[0] == 0
