"""One Arrow IPC file of tokens: how samples lie in it, and how they are read without a copy.

A shard holds one record batch, so its tokens are one contiguous array:

    input_ids  list<uintN>   the smallest unsigned type that holds the vocabulary
    targets    list<bool>    one bit per token; the column is absent where every token but a sample's first is a target
    source     uint32        index into the manifest's sources
    record     int64         number of the record in its source, as error messages count it
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from padless.errors import ViolationError

__all__ = ["Block", "Shard", "shard_name", "token_dtype", "write_shard"]


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest unsigned type that holds ids below `vocab_size`.

    Example:
        >>> [str(token_dtype(size)) for size in (256, 257, 151_936)]
        ['uint8', 'uint16', 'uint32']
    """
    return np.min_scalar_type(max(vocab_size - 1, 0))


def shard_name(index: int) -> str:
    """File name of shard number `index`."""
    return f"tokens-{index:05d}.arrow"


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """Samples laid end to end: `tokens[T]`, `lengths[N]`, `targets bool[T] | None`, `sources[N]`, `records[N]`."""

    tokens: np.ndarray
    lengths: np.ndarray
    targets: np.ndarray | None
    sources: np.ndarray
    records: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    def split(self, samples: int) -> tuple["Block", "Block"]:
        """The first `samples` samples, and the rest; views, no copy."""
        at = int(self.lengths[:samples].sum())
        return (
            self._part(slice(None, at), slice(None, samples)),
            self._part(slice(at, None), slice(samples, None)),
        )

    def _part(self, tokens: slice, samples: slice) -> "Block":
        return Block(
            tokens=self.tokens[tokens],
            lengths=self.lengths[samples],
            targets=None if self.targets is None else self.targets[tokens],
            sources=self.sources[samples],
            records=self.records[samples],
        )


def write_shard(path: Path, block: Block) -> None:
    """Write a block as one Arrow IPC file."""
    offsets = np.zeros(len(block) + 1, np.int32)
    np.cumsum(block.lengths, out=offsets[1:])
    columns: dict[str, pa.Array] = {"input_ids": _list_array(offsets, pa.array(block.tokens))}
    if block.targets is not None:
        columns["targets"] = _list_array(offsets, pa.array(block.targets))
    columns["source"] = pa.array(block.sources, pa.uint32())
    columns["record"] = pa.array(block.records, pa.int64())
    batch = pa.record_batch(columns)
    with pa.OSFile(str(path), "wb") as sink, ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def _list_array(offsets: np.ndarray, values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets), values)


class Shard:
    """A memory-mapped shard: numpy views of the file's pages, no copy, no open file descriptor.

    Attributes:
        tokens: `uintN[T]`, every sample's tokens end to end.
        offsets: `int32[N + 1]`, where each sample starts in `tokens`.
    """

    def __init__(self, path: Path) -> None:
        try:
            with pa.memory_map(str(path)) as source:  # the mapping outlives the file handle
                batch = ipc.open_file(source).get_batch(0)
        except (pa.ArrowInvalid, OSError, IndexError, ValueError) as error:
            raise ViolationError(
                f"{path} cannot be read as a token shard ({error}); `padless verify` says more"
            ) from error
        ids = batch.column("input_ids")
        self._batch = batch
        self.tokens: np.ndarray = ids.values.to_numpy()
        self.offsets: np.ndarray = ids.offsets.to_numpy()

    def __len__(self) -> int:
        return self._batch.num_rows

    @cached_property
    def target_bits(self) -> np.ndarray | None:
        """`uint8[ceil(T / 8)]`, least significant bit first, or None where all but first tokens are targets."""
        if "targets" not in self._batch.schema.names:
            return None
        return np.frombuffer(self._batch.column("targets").values.buffers()[1], np.uint8)

    @cached_property
    def sources(self) -> np.ndarray:
        """`uint32[N]`: index of each sample's file among the manifest's sources."""
        return self._batch.column("source").to_numpy()

    @cached_property
    def records(self) -> np.ndarray:
        """`int64[N]`: number of each sample's record in its file."""
        return self._batch.column("record").to_numpy()

    def count_targets(self) -> int:
        """How many tokens are targets."""
        if self.target_bits is None:
            return len(self.tokens) - int(np.count_nonzero(np.diff(self.offsets)))
        bits = np.unpackbits(self.target_bits, count=len(self.tokens), bitorder="little")
        return int(np.count_nonzero(bits))

    def targets_between(self, start: int, stop: int) -> np.ndarray | None:
        """`bool[stop - start]` of stored targets, or None where the shard stores none."""
        if self.target_bits is None:
            return None
        first = start // 8
        bits = np.unpackbits(self.target_bits[first : (stop + 7) // 8], bitorder="little")
        return bits[start - 8 * first : stop - 8 * first].view(np.bool_)

    def targets_at(self, index: np.ndarray) -> np.ndarray | None:
        """`bool[len(index)]` of stored targets at token positions `index`, or None where the shard stores none."""
        if self.target_bits is None:
            return None
        return ((self.target_bits[index >> 3] >> (index & 7).astype(np.uint8)) & 1).view(np.bool_)
