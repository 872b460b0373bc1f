"""NeMo's packed files come back as the samples that went in; a pickle that wants to run something runs nothing."""

import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless import TokenStore, pack, plan
from padless.corpus import Sample
from padless.corpus.sources import find_sources, read_raw
from padless.errors import PadlessError
from padless.frameworks.export import export
from padless.frameworks.nemo_legacy import convert_nemo_npy
from padless.training import PackedDataset

Row = dict[str, list[int]]


def packed_row(samples: list[tuple[list[int], list[int]]]) -> Row:
    """As NeMo's writer has it: masks moved left inside a segment, with a 0 at its end."""
    ids, mask, starts = [], [], []
    for tokens, targets in samples:
        starts.append(len(ids))
        ids += tokens
        mask += [*targets[1:], 0]
    return {"input_ids": ids, "loss_mask": mask, "seq_start_id": starts}


samples_of_rows = st.lists(
    st.lists(
        st.lists(st.integers(0, 250), min_size=1, max_size=6).flatmap(
            lambda ids: st.lists(st.integers(0, 1), min_size=len(ids) - 1, max_size=len(ids) - 1).map(
                lambda rest: (ids, [0, *rest])
            )
        ),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=5,
)


def found_in(path: Path) -> list[tuple[list[int], list[int]]]:
    [source] = find_sources([path])
    records: list[Any] = [record for batch in read_raw(source) for record in batch.records()]
    assert [record.number for record in records] == list(range(1, len(records) + 1))
    return [(record.fields["input_ids"].tolist(), record.fields["loss_mask"].tolist()) for record in records]


@settings(deadline=None, max_examples=40)
@given(samples_of_rows)
def test_rows_come_apart_into_their_samples(tmp_path_factory: pytest.TempPathFactory, rows: list) -> None:
    folder = tmp_path_factory.mktemp("n")
    lines = [packed_row(row) for row in rows]
    pq.write_table(pa.Table.from_pylist(lines), folder / "x.idx.parquet", row_group_size=2)
    expected = [sample for row in rows for sample in row]
    assert found_in(folder / "x.idx.parquet") == expected
    np.save(folder / "x.npy", np.array(lines, dtype=object), allow_pickle=True)
    assert convert_nemo_npy(folder / "x.npy", folder / "y.parquet") == len(rows)
    assert found_in(folder / "y.parquet") == expected


@pytest.mark.parametrize("to", ["nemo", "trl", "parquet"])
def test_an_export_is_packed_again_with_its_boundaries_and_targets(tmp_path: Path, to: str) -> None:
    rng = np.random.default_rng(0)
    samples = []
    for n in rng.integers(2, 20, 40):
        targets = rng.random(n) < 0.5
        targets[0], targets[-1] = False, True
        samples.append(Sample(rng.integers(1, 250, n), targets))
    store = TokenStore.write(tmp_path / "store", samples, vocab_size=256)
    export(PackedDataset(store, plan=plan(store.lengths, 32)), tmp_path / "out", to=to)
    pack(str(tmp_path / "out" / "*.parquet"), tokenizer="bytes", capacity=32, output=tmp_path / "again", add_eod=False)

    def content(opened: TokenStore) -> list:
        return sorted((sample.input_ids.tolist(), sample.target_mask().tolist()) for sample in opened)

    assert content(TokenStore(tmp_path / "again")) == content(store)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_start_id": [1, 3]}, "do not grow from 0"),
        ({"seq_start_id": [0, 0]}, "do not grow from 0"),
        ({"seq_start_id": [0, 5]}, "do not grow from 0"),
        ({"seq_start_id": []}, "no segment is named"),
        ({"loss_mask": [1, 1]}, "loss_mask and input_ids have other lengths"),
    ],
)
def test_rows_that_do_not_fit_together_name_the_row(tmp_path: Path, change: Row, message: str) -> None:
    good = {"input_ids": [5, 6, 7, 8, 9], "loss_mask": [1, 1, 0, 1, 0], "seq_start_id": [0, 3]}
    pq.write_table(pa.Table.from_pylist([good, good | change]), tmp_path / "x.parquet")
    with pytest.raises(PadlessError, match=f"packed row 2: .*{message}|{message}"):
        found_in(tmp_path / "x.parquet")
    np.save(tmp_path / "x.npy", np.array([good, good | change], dtype=object), allow_pickle=True)
    with pytest.raises(PadlessError, match=message):
        convert_nemo_npy(tmp_path / "x.npy", tmp_path / "y.parquet")
    assert not (tmp_path / "y.parquet").exists()


def test_rows_by_lengths_add_up_to_their_tokens(tmp_path: Path) -> None:
    rows = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "seq_lengths": [2, 2]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    with pytest.raises(PadlessError, match="do not add up"):
        found_in(tmp_path / "x.parquet")


def test_numbers_of_numpy_inside_rows_are_read(tmp_path: Path) -> None:
    row = {
        "input_ids": np.array([5, 6, 7], np.int32),
        "loss_mask": [np.bool_(True), np.bool_(True), np.bool_(False)],
        "seq_start_id": [np.int64(0)],
    }
    np.save(tmp_path / "x.npy", np.array([row], dtype=object), allow_pickle=True)
    assert convert_nemo_npy(tmp_path / "x.npy", tmp_path / "y.parquet") == 1
    assert found_in(tmp_path / "y.parquet") == [([5, 6, 7], [0, 1, 1])]


class Hostile:
    """A pickle of this runs a command when it is loaded."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("where", ["row", "field", "entry"])
@pytest.mark.parametrize(
    "function", [os.system, eval, os.remove, pickle.loads, getattr, np.load], ids=lambda function: function.__name__
)
def test_a_hostile_pickle_runs_nothing(tmp_path: Path, where: str, function: Any) -> None:
    victim = tmp_path / "victim"
    victim.write_text("here")
    arguments = {
        os.system: (f"rm {victim}",),
        eval: (f"__import__('os').remove({str(victim)!r})",),
        os.remove: (str(victim),),
        pickle.loads: (pickle.dumps(Hostile(os.remove, str(victim))),),
        getattr: ("", "join"),
        np.load: (str(victim),),
    }[function]
    bomb: Any = Hostile(function, *arguments)
    row: Any = {"input_ids": [5, 6], "loss_mask": [1, 0], "seq_start_id": [0]}
    if where == "row":
        row = bomb
    elif where == "field":
        row["loss_mask"] = bomb
    else:
        row["input_ids"] = [5, bomb]
    np.save(tmp_path / "x.npy", np.array([row], dtype=object), allow_pickle=True)
    with pytest.raises(PadlessError, match="Nothing was run"):
        convert_nemo_npy(tmp_path / "x.npy", tmp_path / "y.parquet")
    assert victim.read_text() == "here"


def test_the_stand_ins_cannot_be_called_into_something_else(tmp_path: Path) -> None:
    """numpy.ndarray may be named, as numpy names it; a call of it is refused."""
    np.save(tmp_path / "x.npy", np.array([Hostile(np.ndarray, (1 << 40,))], dtype=object), allow_pickle=True)
    with pytest.raises(PadlessError, match="in a way that numpy never writes"):
        convert_nemo_npy(tmp_path / "x.npy", tmp_path / "y.parquet")


def test_other_npy_files_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "numbers.npy", np.arange(5))
    with pytest.raises(PadlessError, match="an array of objects"):
        convert_nemo_npy(tmp_path / "numbers.npy", tmp_path / "y.parquet")
    np.save(tmp_path / "words.npy", np.array(["a", 3], dtype=object), allow_pickle=True)
    with pytest.raises(PadlessError, match="no array of dictionaries"):
        convert_nemo_npy(tmp_path / "words.npy", tmp_path / "y.parquet")
    with pytest.raises(PadlessError, match="cannot read"):
        convert_nemo_npy(tmp_path / "missing.npy", tmp_path / "y.parquet")


def test_damaged_files_are_refused_and_nothing_else_happens(tmp_path: Path) -> None:
    """500 damaged copies of each: rows that still fit together, or a `PadlessError`."""
    chance = random.Random(0)
    rows = [packed_row([([i, i + 1, 7], [0, 1, 1]), ([8] * (i + 2), [0] + [1] * (i + 1))]) for i in range(6)]
    np.save(tmp_path / "x.npy", np.array(rows, dtype=object), allow_pickle=True)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet", compression="none")
    for name, read in (
        ("x.npy", lambda path: convert_nemo_npy(path, tmp_path / "y.parquet")),
        ("x.parquet", found_in),
    ):
        data = (tmp_path / name).read_bytes()
        bad = tmp_path / f"bad-{name}"
        refused = 0
        for _ in range(500):
            out = bytearray(data)
            if chance.random() < 0.3:
                del out[chance.randrange(len(out)) :]
            else:
                for _ in range(chance.randrange(1, 4)):
                    out[chance.randrange(len(out))] = chance.randrange(256)
            bad.write_bytes(out)
            try:
                read(bad)
            except PadlessError:
                refused += 1
        assert refused > 250, name
