"""Megatron's `.idx` and `.bin`: each sequence is one record of tokens, and of its mask where one lies beside it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from padless.corpus.sources.source import BATCH_BYTES, BATCH_RECORDS, RawBatch, Source, reading
from padless.errors import PadlessError
from padless.lengths.indexed import Index, bin_of, read_index

_MASK = "_loss_mask"


def mask_of(path: Path) -> Path:
    """Where `padless export --to megatron` puts the mask of a pair: a pair of its own, one byte per token."""
    return path.with_name(f"{path.stem}{_MASK}.idx")


def files_of(path: Path) -> list[Path]:
    """All files of a source: the pair, and the pair of its mask."""
    mask = mask_of(path)
    return [path, bin_of(path), *([mask, bin_of(mask)] if mask.exists() else [])]


def is_mask(path: Path) -> bool:
    """Whether an `.idx` is the mask of another one beside it."""
    tokens = path.with_name(f"{path.stem.removesuffix(_MASK)}.idx")
    return path.suffix == ".idx" and path.stem.endswith(_MASK) and tokens.exists()


def read(source: Source, start: int) -> Iterator[RawBatch]:
    """Batches of sequences, from sequence `start + 1` on, straight from the mapped files."""
    with reading(source):
        pairs = {"input_ids": _Pair(source.path)}
        if mask_of(source.path).exists():
            pairs["loss_mask"] = _Pair(mask_of(source.path))
            _check_mask(source, **pairs)
        index = pairs["input_ids"].index
        if index.dtype.kind not in "iu":
            raise PadlessError(f"{source.name} holds {index.dtype} and no token ids")
        first = start
        while first < len(index):
            end = first + _count(index, first)
            yield RawBatch(source=source, first=first + 1, count=end - first, payload=_payload(pairs, first, end))
            first = end


class _Pair:
    """An index and the bytes it points into."""

    def __init__(self, path: Path) -> None:
        self.index = read_index(path)
        empty = bin_of(path).stat().st_size == 0
        self.bytes = np.empty(0, np.uint8) if empty else np.memmap(bin_of(path), np.uint8, "r")

    def lists(self, first: int, end: int) -> pa.ListArray:
        """Sequences `first:end` as lists; one view where they lie end to end, as writers lay them."""
        lengths = self.index.lengths[first:end].astype(np.int64)
        size = self.index.dtype.itemsize
        begins, ends = self.index.pointers[first:end], self.index.pointers[first:end] + lengths * size
        if (begins[1:] == ends[:-1]).all():
            values = self.bytes[begins[0] : ends[-1]]
        else:
            spans = zip(begins.tolist(), ends.tolist(), strict=True)
            values = np.concatenate([self.bytes[begin:stop] for begin, stop in spans])
        tokens = values.view(self.index.dtype).astype(self.index.dtype.newbyteorder("="), copy=False)
        return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32()), tokens)


def _count(index: Index, first: int) -> int:
    """Sequences of a batch: at most `BATCH_RECORDS`, about `BATCH_BYTES`, at least one."""
    sizes = np.cumsum(index.lengths[first : first + BATCH_RECORDS], dtype=np.int64) * index.dtype.itemsize
    return max(int(np.searchsorted(sizes, BATCH_BYTES, side="right")), 1)


def _payload(pairs: dict[str, _Pair], first: int, end: int) -> bytes:
    batch = pa.record_batch({name: pair.lists(first, end) for name, pair in pairs.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _check_mask(source: Source, input_ids: _Pair, loss_mask: _Pair) -> None:
    if loss_mask.index.dtype != np.uint8 or not np.array_equal(input_ids.index.lengths, loss_mask.index.lengths):
        raise PadlessError(
            f"{mask_of(source.path)} does not fit {source.name}: a mask is one byte for each token of the same "
            "sequences. Export both again, or move the mask away to train on every token"
        )
