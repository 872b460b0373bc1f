"""Samples in, shards out: buffers that grow in numpy, never in Python objects, and spill when a shard is full."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from padless.corpus.manifest import ShardEntry
from padless.corpus.shard import Block, Shard, shard_name, write_shard
from padless.durable import atomic_path, sha256_of

__all__ = ["SHARD_SAMPLES", "SHARD_TOKENS", "StoreWriter", "describe_shard", "finished_shards", "shard_counts"]

SHARD_TOKENS = 2**26  # 128 MiB of uint16: few files for a large corpus, half a minute of work lost by a kill
SHARD_SAMPLES = 2**21  # bounds the memory that per-sample columns take, however short samples are


class StoreWriter:
    """Append blocks of samples; whole shards appear in the folder as they fill.

    A shard ends with the first sample that brings it to `shard_tokens` tokens or `shard_samples` samples, so where
    shards end depends on the samples alone and not on how they were cut into blocks.

    Args:
        folder: Where shards go; it exists.
        dtype: Type of a token id on disk.
        shard_tokens: When a shard is full.
        eod_id: Counted in each shard; None when samples have no EOD.
        before_shard: Called just before a shard takes its place in the folder.
    """

    def __init__(
        self,
        folder: Path,
        *,
        dtype: np.dtype,
        shard_tokens: int = SHARD_TOKENS,
        shard_samples: int = SHARD_SAMPLES,
        eod_id: int | None = None,
        before_shard: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder = folder
        self.dtype = dtype
        self.shard_tokens = shard_tokens
        self.shard_samples = shard_samples
        self.shards: list[ShardEntry] = []
        self.eod_id = eod_id
        self._before_shard = before_shard
        self._buffer = _Buffer(dtype)

    @property
    def samples(self) -> int:
        """Samples taken so far, buffered ones included."""
        return sum(shard.samples for shard in self.shards) + self._buffer.num_samples

    @property
    def tokens(self) -> int:
        """Tokens taken so far, buffered ones included."""
        return sum(shard.tokens for shard in self.shards) + self._buffer.num_tokens

    def adopt(self, path: Path) -> None:
        """List a finished shard, of this run or of an earlier one of the same job."""
        self.shards.append(describe_shard(path, self.eod_id))

    def append(self, block: Block) -> None:
        """Add samples, writing shards as they fill."""
        while len(block):
            room = self._room(block)
            if room is None:
                self._buffer.extend(block)
                return
            head, block = block.split(room)
            self._buffer.extend(head)
            self.flush()

    def flush(self) -> None:
        """Write what is buffered as a shard; nothing when nothing is."""
        block = self._buffer.block()
        if not len(block):
            return
        path = self.folder / shard_name(len(self.shards))
        with atomic_path(path) as scratch:
            write_shard(scratch, block)
            self._before_shard()
        self.adopt(path)
        self._buffer = _Buffer(self.dtype)

    def _room(self, block: Block) -> int | None:
        """How many samples of `block` complete the shard, or None when it stays open after all of them."""
        by_tokens = int(
            np.searchsorted(np.cumsum(block.lengths, dtype=np.int64), self.shard_tokens - self._buffer.num_tokens)
        )
        by_samples = self.shard_samples - self._buffer.num_samples - 1
        last = min(by_tokens, by_samples)
        return last + 1 if last < len(block) else None


def finished_shards(folder: Path) -> list[Path]:
    """The shards in `folder`, in order, up to the first that is missing."""
    found: list[Path] = []
    while (path := folder / shard_name(len(found))).exists():
        found.append(path)
    return found


def describe_shard(path: Path, eod_id: int | None) -> ShardEntry:
    """Count and hash a shard, from its bytes alone."""
    counts = shard_counts(Shard(path), eod_id)
    return ShardEntry(name=path.name, bytes=path.stat().st_size, sha256=sha256_of(path), **counts)


def shard_counts(shard: Shard, eod_id: int | None) -> dict[str, int]:
    """What a shard holds, by the names of `ShardEntry`."""
    return {
        "samples": len(shard),
        "tokens": len(shard.tokens),
        "targets": shard.count_targets(),
        "eod_tokens": 0 if eod_id is None else int(np.count_nonzero(shard.tokens == eod_id)),
    }


class _Buffer:
    """Columns of the shard in the making."""

    def __init__(self, dtype: np.dtype) -> None:
        self.tokens = _Column(dtype)
        self.targets = _Column(np.dtype(np.bool_))
        self.lengths = _Column(np.dtype(np.int32))
        self.sources = _Column(np.dtype(np.uint32))
        self.records = _Column(np.dtype(np.int64))
        self.masked = False

    @property
    def num_tokens(self) -> int:
        return self.tokens.size

    @property
    def num_samples(self) -> int:
        return self.lengths.size

    def extend(self, block: Block) -> None:
        if block.targets is not None and not self.masked:
            self.targets.extend(_every_token_but_first(self.lengths.view(), self.num_tokens))
            self.masked = True
        if self.masked:
            targets = block.targets
            self.targets.extend(
                _every_token_but_first(block.lengths, len(block.tokens)) if targets is None else targets
            )
        self.tokens.extend(block.tokens)
        self.lengths.extend(block.lengths)
        self.sources.extend(block.sources)
        self.records.extend(block.records)

    def block(self) -> Block:
        return Block(
            tokens=self.tokens.view(),
            lengths=self.lengths.view(),
            targets=self.targets.view() if self.masked else None,
            sources=self.sources.view(),
            records=self.records.view(),
        )


def _every_token_but_first(lengths: np.ndarray, size: int) -> np.ndarray:
    mask = np.ones(size, np.bool_)
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    mask[starts[lengths > 0]] = False
    return mask


class _Column:
    """A numpy array that doubles when it is full."""

    def __init__(self, dtype: np.dtype) -> None:
        self._data = np.empty(1024, dtype)
        self.size = 0

    def extend(self, values: np.ndarray) -> None:
        end = self.size + len(values)
        if end > len(self._data):
            grown = np.empty(max(end, 2 * len(self._data)), self._data.dtype)
            grown[: self.size] = self._data[: self.size]
            self._data = grown
        self._data[self.size : end] = values
        self.size = end

    def view(self) -> np.ndarray:
        return self._data[: self.size]
