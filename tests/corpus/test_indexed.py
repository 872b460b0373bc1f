"""Megatron's `.bin` and `.idx`: the same bytes as its own builder, read back as a source, and damage refused."""

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless import TokenStore, plan
from padless.corpus import Sample, pack
from padless.corpus.sources import Record, find_sources, read_raw
from padless.errors import PadlessError
from padless.frameworks.export import export
from padless.frameworks.export.indexed import write_index
from padless.lengths import read_lengths
from padless.lengths.indexed import DTYPE_CODES, read_index
from padless.training import PackedDataset


def write_pair(
    prefix: Path, sequences: Sequence[Sequence[int]], dtype: str = "uint16", documents: list[int] | None = None
) -> Path:
    lengths = np.array([len(sequence) for sequence in sequences])
    ends = list(range(len(sequences) + 1)) if documents is None else documents
    write_index(prefix.with_suffix(".idx"), np.dtype(dtype), lengths, np.array(ends))
    flat = [token for sequence in sequences for token in sequence]
    prefix.with_suffix(".bin").write_bytes(np.array(flat, np.dtype(dtype).newbyteorder("<")).tobytes())
    return prefix.with_suffix(".idx")


def records_of(path: Path, start: int = 0) -> list[Record]:
    [source] = find_sources([path])
    return [record for batch in read_raw(source, start) for record in batch.records() if isinstance(record, Record)]


@pytest.mark.interop
@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "uint16"])
def test_both_sides_read_what_the_other_wrote(tmp_path: Path, dtype: str) -> None:
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 250, n).tolist() for n in (3, 1, 70, 5, 2)]
    builder = IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.dtype(dtype).type)
    for number, sequence in enumerate(sequences):
        builder.add_item(torch.tensor(sequence))
        if number in (1, 4):
            builder.end_document()
    builder.finalize(str(tmp_path / "theirs.idx"))
    write_pair(tmp_path / "ours", sequences, dtype, [0, 2, 5])
    for suffix in (".idx", ".bin"):
        assert (tmp_path / f"ours{suffix}").read_bytes() == (tmp_path / f"theirs{suffix}").read_bytes()
    assert [record.fields["input_ids"].tolist() for record in records_of(tmp_path / "theirs.idx")] == sequences
    assert read_index(tmp_path / "theirs.idx").documents.tolist() == [0, 2, 5]
    theirs = IndexedDataset(str(tmp_path / "ours"))
    assert [theirs[i].tolist() for i in range(len(theirs))] == sequences


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.integers(0, 255), max_size=9), min_size=1, max_size=20), st.integers(0, 20))
def test_reading_starts_anywhere(tmp_path_factory: pytest.TempPathFactory, sequences: list, start: int) -> None:
    path = write_pair(tmp_path_factory.mktemp("i") / "x", sequences, "uint8")
    found = [(record.number, record.fields["input_ids"].tolist()) for record in records_of(path, min(start, 20))]
    assert found == list(enumerate(sequences, 1))[start:]


def test_batches_are_bounded_and_sequences_out_of_order_are_found(tmp_path: Path) -> None:
    sequences = [[i % 250] * (i % 7 + 1) for i in range(9000)] + [[3] * 700_000, [4]]
    path = write_pair(tmp_path / "x", sequences)
    [source] = find_sources([path])
    batches = list(read_raw(source))
    assert all(batch.count <= 4096 for batch in batches)
    assert len(batches) >= 4, "the long sequence has a batch of its own"
    assert [r.fields["input_ids"].tolist() for b in batches for r in b.records()] == sequences
    data = bytearray(path.read_bytes())
    pointers = np.frombuffer(data, "<i8", 2, 34 + 4 * len(sequences)).copy()
    data[34 + 4 * len(sequences) : 34 + 4 * len(sequences) + 16] = pointers[::-1].tobytes()
    lengths = np.frombuffer(data, "<i4", 2, 34).copy()
    data[34:42] = lengths[::-1].astype("<i4").tobytes()
    path.write_bytes(data)
    first = [record.fields["input_ids"].tolist() for record in records_of(path)[:3]]
    assert first == [sequences[1], sequences[0], sequences[2]]


def test_a_store_goes_out_and_comes_back_with_its_targets(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    samples = []
    for n in rng.integers(2, 30, 50):
        targets = rng.random(n) < 0.5
        targets[0], targets[-1] = False, True
        samples.append(Sample(rng.integers(1, 250, n), targets))
    store = TokenStore.write(tmp_path / "store", samples, vocab_size=256)
    export(PackedDataset(store, plan=plan(store.lengths, 32)), tmp_path / "out", to="megatron")
    summary = pack(tmp_path / "out", tokenizer="bytes", capacity=32, output=tmp_path / "again", add_eod=False)
    again = TokenStore(tmp_path / "again")

    def content(opened: TokenStore) -> list:
        return sorted((sample.input_ids.tolist(), sample.target_mask().tolist()) for sample in opened)

    assert content(again) == content(store)
    assert summary.targets == sum(int(sample.targets.sum()) for sample in samples if sample.targets is not None)
    assert len(again.manifest.sources) == 1, "the mask is no source of its own"


def test_plan_reads_the_lengths(tmp_path: Path) -> None:
    path = write_pair(tmp_path / "x", [[1, 2], [3], [4, 5, 6]])
    assert read_lengths(path).tolist() == [2, 1, 3]


def test_the_pair_is_hashed_and_named(tmp_path: Path) -> None:
    path = write_pair(tmp_path / "x", [[1, 2], [3]])
    [source] = find_sources([tmp_path])
    before = source.fingerprint()
    assert before.bytes == path.stat().st_size + (tmp_path / "x.bin").stat().st_size
    (tmp_path / "x.bin").write_bytes(np.array([1, 2, 4], "<u2").tobytes())
    assert source.fingerprint().sha256 != before.sha256


def test_masks_that_do_not_fit_and_masks_alone_are_refused(tmp_path: Path) -> None:
    write_pair(tmp_path / "x", [[1, 2], [3]])
    mask = write_pair(tmp_path / "x_loss_mask", [[1, 1, 1], [0]], "uint8")
    with pytest.raises(PadlessError, match="does not fit"):
        records_of(tmp_path / "x.idx")
    with pytest.raises(PadlessError, match="is the mask of another pair"):
        find_sources([mask])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_that_are_no_ids_are_refused(tmp_path: Path, dtype: str) -> None:
    with pytest.raises(PadlessError, match="no token ids"):
        records_of(write_pair(tmp_path / "x", [[1, 2]], dtype))


def test_a_missing_half_is_said(tmp_path: Path) -> None:
    path = write_pair(tmp_path / "x", [[1, 2]])
    (tmp_path / "x.bin").unlink()
    with pytest.raises(PadlessError, match=r"an \.idx and a .bin go together"):
        records_of(path)


def damaged(data: bytes, chance: random.Random) -> bytes:
    """One fault: cut, grown, or bytes changed, the header more often than the rest."""
    kind = chance.choice(["cut", "grow", "flip", "header", "field"])
    out = bytearray(data)
    if kind == "cut":
        return data[: chance.randrange(len(data))]
    if kind == "grow":
        return data + chance.randbytes(chance.randrange(1, 40))
    if kind == "field":
        at = chance.randrange(9, len(out))
        out[at : at + 8] = chance.choice([b"\xff" * 8, b"\x00" * 8, (1 << 62).to_bytes(8, "little")])
        return bytes(out)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(min(len(out), 34) if kind == "header" else len(out))
        out[at] = chance.randrange(256)
    return bytes(out)


def test_damage_is_refused_or_read_as_what_the_bytes_say(tmp_path: Path) -> None:
    """500 damaged files: a `PadlessError`, or sequences that lie inside the `.bin`; never anything else."""
    chance = random.Random(0)
    path = write_pair(tmp_path / "x", [[i] * (i % 5 + 1) for i in range(12)], documents=[0, 5, 12])
    index, tokens = path.read_bytes(), (tmp_path / "x.bin").read_bytes()
    refused = 0
    for _ in range(500):
        which = chance.random() < 0.8
        path.write_bytes(damaged(index, chance) if which else index)
        (tmp_path / "x.bin").write_bytes(tokens if which else damaged(tokens, chance))
        try:
            held = sum(len(record.fields["input_ids"]) for record in records_of(path))
            assert held <= 12 * len(tokens)
        except PadlessError:
            refused += 1
    assert refused > 200


def test_codes_are_the_eight_that_megatron_knows() -> None:
    assert sorted(DTYPE_CODES.values()) == list(range(1, 9))


@pytest.mark.slow
def test_reading_is_a_stream_at_the_speed_of_memory(tmp_path: Path) -> None:
    """Ten million tokens in short sequences: well under a second, and no more than a batch at a time."""
    lengths = np.random.default_rng(0).integers(50, 150, 100_000)
    write_index(tmp_path / "x.idx", np.dtype("uint16"), lengths, np.arange(len(lengths) + 1))
    np.arange(int(lengths.sum()), dtype="<u2").tofile(tmp_path / "x.bin")
    [source] = find_sources([tmp_path / "x.idx"])
    began = time.process_time()
    held = sum(batch.count for batch in read_raw(source))
    assert held == len(lengths)
    assert time.process_time() - began < 2


def test_the_command_packs_and_plans_an_index(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from padless.cli.main import group

    path = write_pair(tmp_path / "x", [[1, 2, 3], [4, 5]] * 10)
    run = CliRunner().invoke(group, ["plan", str(path), "-c", "8", "--json"])
    assert json.loads(run.output)["real_tokens"] == 50
