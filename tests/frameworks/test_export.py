"""Exports read back through the other side's own reader: the same tokens, boundaries and targets."""

import itertools
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from padless import TokenStore, plan
from padless.corpus import Sample
from padless.durable import sha256_of
from padless.errors import PadlessError, ViolationError
from padless.frameworks.export import FORMATS, export, job, tables
from padless.frameworks.export.indexed import write_index
from padless.training import PackedDataset

Segments = list[list[tuple[list[int], list[bool]]]]  # per row, per segment: ids and targets


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    """Rows of several segments, a row of nothing but a one-token segment, split samples, several shards."""
    rng = np.random.default_rng(0)
    samples = []
    for n in [1, 40, 70, *rng.integers(1, 30, 40).tolist()]:
        targets = rng.random(n) < 0.6
        targets[0] = False
        samples.append(Sample(rng.integers(0, 60_000, n), targets))
    store = TokenStore.write(tmp_path_factory.mktemp("s") / "store", samples, vocab_size=60_000, shard_tokens=200)
    return PackedDataset(store, plan=plan(store.lengths, 32, oversize="split", max_segments=6))


def expected(dataset: PackedDataset) -> Segments:
    """Straight from the store and the plan."""
    rows = []
    for row in range(len(dataset)):
        segments = []
        for sample_id, start, n in zip(*(part.tolist() for part in dataset.plan.row(row)), strict=True):
            sample = dataset.store[sample_id]
            targets = [False, *sample.target_mask()[start + 1 : start + n].tolist()]
            segments.append((sample.input_ids[start : start + n].tolist(), targets))
        rows.append(segments)
    return rows


def cut(values: list[Any], lengths: list[int]) -> list[list[Any]]:
    ends = np.cumsum(lengths).tolist()
    return [values[end - n : end] for end, n in zip(ends, lengths, strict=True)]


def read_table(folder: Path, builder: str, suffix: str, cache: Path) -> Any:
    from datasets import load_dataset

    files = sorted(str(path) for path in folder.glob(f"rows-*{suffix}"))
    return load_dataset(builder, data_files=files, split="train", cache_dir=str(cache))


def from_table(rows: Any) -> Segments:
    """Unshifted labels, segments by length."""
    found = []
    for row in rows:
        segments = zip(cut(row["input_ids"], row["seq_lengths"]), cut(row["labels"], row["seq_lengths"]), strict=True)
        found.append([(ids, [label != -100 for label in labels]) for ids, labels in segments])
        assert all(label in (-100, token) for token, label in zip(row["input_ids"], row["labels"], strict=True))
    return found


@pytest.mark.interop
@pytest.mark.parametrize(
    ("to", "builder", "suffix"),
    [("parquet", "parquet", ".parquet"), ("jsonl", "json", ".jsonl"), ("arrow", "arrow", ".arrow")],
)
def test_datasets_reads_back_the_same_rows(dataset: PackedDataset, tmp_path: Path, to: str, builder, suffix) -> None:
    done = export(dataset, tmp_path / "out", to=to)
    rows = read_table(tmp_path / "out", builder, suffix, tmp_path / "cache")
    assert from_table(rows) == expected(dataset)
    assert [row["position_ids"] for row in rows] == [
        [i for ids, _ in row for i in range(len(ids))] for row in expected(dataset)
    ]
    assert [row["sample_ids"] for row in rows] == [dataset.plan.row(r)[0].tolist() for r in range(len(dataset))]
    assert done.lines == done.rows == len(dataset)


@pytest.mark.interop
def test_arrow_is_mapped_without_a_copy(dataset: PackedDataset, tmp_path: Path) -> None:
    from datasets import Dataset

    export(dataset, tmp_path / "out", to="arrow")
    assert from_table(Dataset.from_file(str(tmp_path / "out" / "rows-00000.arrow"))) == expected(dataset)


@pytest.mark.interop
def test_trl_trains_on_the_same_rows(dataset: PackedDataset, tmp_path: Path) -> None:
    """Through SFTTrainer's own preparation and collator, without packing again."""
    from datasets import load_dataset
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    export(dataset, tmp_path / "out", to="trl")
    rows = load_dataset("parquet", data_files=str(tmp_path / "out" / "*.parquet"), split="train")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1}, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="</s>",
    )
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=60_000, **shape))
    arguments = SFTConfig(
        output_dir=str(tmp_path / "run"),
        padding_free=True,
        packing=False,
        max_length=None,
        per_device_train_batch_size=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    trainer = SFTTrainer(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer)
    found = set()
    for batch in trainer.get_train_dataloader():
        cuts = batch["cu_seq_lens_q"].tolist()
        spans = list(itertools.pairwise(cuts))
        ids, labels = batch["input_ids"][0], batch["labels"][0]
        assert bool(((labels == ids) | (labels == -100)).all())
        found.add(str([(ids[a:b].tolist(), (labels[a:b] != -100).tolist()) for a, b in spans]))
    assert found == {str(row) for row in expected(dataset)}


def test_bridge_reads_the_same_tokens_and_targets(dataset: PackedDataset, tmp_path: Path) -> None:
    """NeMo's and Megatron-Bridge's rows: schema, validation and slicing as their reader has them."""
    done = export(dataset, tmp_path / "out", to="nemo")
    (file,) = (tmp_path / "out").glob("*.idx.parquet")
    table = pq.read_table(file)
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {name: f"list<element: {t}>" for name, t in SCHEMA.items()}
    kept = [[segment for segment in row if len(segment[0]) > 1] for row in expected(dataset)]
    found = []
    for line in table.to_pylist():
        ids, mask, starts = line["input_ids"], line["loss_mask"], line["seq_start_id"]
        assert starts[0] == 0
        assert starts == sorted(starts)
        assert starts[-1] < len(ids) == len(mask)
        spans = zip(starts, [*starts[1:], len(ids)], strict=True)
        found.append([(ids[b : e - 1], ids[b + 1 : e], [bool(m) for m in mask[b : e - 1]]) for b, e in spans])
    assert found == [[(ids[:-1], ids[1:], targets[1:]) for ids, targets in row] for row in kept if row]
    assert done.left_out_segments == sum(len(row) for row in expected(dataset)) - sum(map(len, kept)) > 0
    assert done.lines == len(found)
    (record,) = json.loads((tmp_path / "out" / "32_metadata.jsonl").read_text())
    assert record["pack_size"] == 32
    assert record["max_samples_per_bin"] == max(len(row) for row in expected(dataset))


SCHEMA = {"input_ids": "int64", "loss_mask": "int8", "seq_start_id": "int64"}


@pytest.mark.interop
def test_megatron_reads_the_same_segments_documents_and_targets(dataset: PackedDataset, tmp_path: Path) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    export(dataset, tmp_path / "out", to="megatron")
    tokens = IndexedDataset(str(tmp_path / "out" / "rows"))
    mask = IndexedDataset(str(tmp_path / "out" / "rows_loss_mask"))
    assert tokens.document_indices.tolist() == mask.document_indices.tolist() == dataset.plan.row_offsets.tolist()
    sequences = [(tokens[i].tolist(), mask[i].astype(bool).tolist()) for i in range(len(tokens))]
    documents = zip(tokens.document_indices[:-1], tokens.document_indices[1:], strict=True)
    assert [sequences[a:b] for a, b in documents] == expected(dataset)


@pytest.mark.interop
def test_the_index_is_byte_for_byte_what_megatron_writes(tmp_path: Path) -> None:
    from megatron.core.datasets.indexed_dataset import DType, _IndexWriter

    lengths, documents = [3, 1, 4, 1, 5], [0, 2, 5]
    for code in DType:
        dtype = np.dtype(code.name)
        write_index(tmp_path / "ours.idx", dtype, np.array(lengths), np.array(documents))
        with _IndexWriter(str(tmp_path / "theirs.idx"), dtype.type) as writer:
            writer.write(lengths, None, documents)
        assert (tmp_path / "ours.idx").read_bytes() == (tmp_path / "theirs.idx").read_bytes()


@pytest.mark.parametrize("to", FORMATS)
def test_the_manifest_says_what_was_written(dataset: PackedDataset, tmp_path: Path, to: str) -> None:
    done = export(dataset, tmp_path / "out", to=to)
    manifest = json.loads((done.folder / "export.json").read_text())
    files = {entry["name"]: entry for entry in manifest["files"]}
    assert set(files) | {"export.json"} == {path.name for path in done.folder.iterdir()}
    assert all(sha256_of(done.folder / name) == entry["sha256"] for name, entry in files.items())
    assert manifest["tokens"] == int(dataset.plan.lengths.sum())
    assert manifest["targets"] == sum(sum(t) for row in expected(dataset) for _, t in row)
    assert manifest["plan"]["fingerprint"] == dataset.plan.fingerprint
    assert manifest["store"]["fingerprint"] == dataset.store.fingerprint
    assert manifest["accounting"]["split_samples"] == 2
    assert manifest["targets_lost"] == done.targets_lost > 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_files_are_cut_and_groups_are_filled(
    dataset: PackedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "SHARD_TOKENS", 256)
    monkeypatch.setattr(tables, "ROW_GROUP", 5)
    monkeypatch.setattr(job, "CHUNK_TOKENS", 32 * 3)
    export(dataset, tmp_path / "out", to="parquet")
    files = sorted((tmp_path / "out").glob("*.parquet"))
    assert len(files) > 2
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert from_table(rows) == expected(dataset)
    assert pq.ParquetFile(files[0]).metadata.row_group(0).num_rows == 5


def test_a_killed_export_leaves_nothing_in_place_and_the_next_begins_anew(
    dataset: PackedDataset, tmp_path: Path
) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(dataset, tmp_path / "out", to="jsonl", progress=stop)
    assert not (tmp_path / "out").exists()
    scratch = tmp_path / ".unfinished-out"  # what kill -9 would leave
    (scratch / "rows-00007.jsonl").write_text("half a li")
    done = export(dataset, tmp_path / "out", to="jsonl")
    assert sorted(path.name for path in done.folder.iterdir()) == ["export.json", "rows-00000.jsonl"]
    assert not scratch.exists()


def test_an_export_never_mixes_with_older_files(dataset: PackedDataset, tmp_path: Path) -> None:
    with pytest.raises(PadlessError, match="exists; an export takes a new folder"):
        export(dataset, tmp_path, to="jsonl")
    with pytest.raises(PadlessError, match="there are parquet, jsonl, arrow, trl, nemo, megatron"):
        export(dataset, tmp_path / "out", to="csv")


@pytest.mark.parametrize("to", FORMATS)
def test_padded_rows_are_refused(dataset: PackedDataset, tmp_path: Path, to: str) -> None:
    padded = PackedDataset(dataset.store, plan=dataset.plan, pad_rows=True)
    with pytest.raises(PadlessError, match="are padding"):
        export(padded, tmp_path / "out", to=to)


def test_an_export_that_lost_a_row_is_not_put_in_place(dataset: PackedDataset, tmp_path: Path) -> None:
    class Short(PackedDataset):
        def __len__(self) -> int:
            return self.plan.num_rows - 1

    short = Short(dataset.store, plan=dataset.plan)
    with pytest.raises(ViolationError, match="nothing was put in place"):
        export(short, tmp_path / "out", to="jsonl")
    assert not (tmp_path / "out").exists()


def test_ids_of_a_small_vocabulary_are_written_as_megatron_reads_them(tmp_path: Path) -> None:
    store = TokenStore.write(tmp_path / "s", [[1, 2, 3], [4, 5]], vocab_size=100)
    export(PackedDataset(store, plan=plan(store.lengths, 8)), tmp_path / "out", to="megatron")
    header = (tmp_path / "out" / "rows.idx").read_bytes()[:34]
    assert struct.unpack("<9sQBQQ", header) == (b"MMIDIDX\x00\x00", 1, 8, 2, 2)
