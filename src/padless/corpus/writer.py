"""Samples in, shards out: buffers that grow in numpy, never in Python objects, and spill when a shard is full."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from padless.corpus.durable import atomic_path, sha256_of
from padless.corpus.manifest import ShardEntry
from padless.corpus.shard import Block, read_shard_state, shard_name, write_shard

__all__ = ["SHARD_SAMPLES", "SHARD_TOKENS", "StoreWriter"]

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
        state_at: Called with (source, record) of a shard's last sample when the shard is written; what it returns is
            kept in the shard and read back by `shard_states`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        dtype: np.dtype,
        shard_tokens: int = SHARD_TOKENS,
        shard_samples: int = SHARD_SAMPLES,
        state_at: Callable[[int, int], dict[str, Any]] = lambda source, record: {},
    ) -> None:
        self.folder = folder
        self.dtype = dtype
        self.shard_tokens = shard_tokens
        self.shard_samples = shard_samples
        self.shards: list[ShardEntry] = []
        self._state_at = state_at
        self._buffer = _Buffer(dtype)

    def adopt(self, name: str, samples: int, tokens: int) -> None:
        """Count a shard that an earlier run of the same job finished."""
        path = self.folder / name
        self.shards.append(
            ShardEntry(name=name, bytes=path.stat().st_size, sha256=sha256_of(path), samples=samples, tokens=tokens)
        )

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
        state = self._state_at(int(block.sources[-1]), int(block.records[-1]))
        with atomic_path(path) as scratch:
            write_shard(scratch, block, state)
        self.adopt(path.name, len(block), len(block.tokens))
        self._buffer = _Buffer(self.dtype)

    def _room(self, block: Block) -> int | None:
        """How many samples of `block` complete the shard, or None when it stays open after all of them."""
        by_tokens = int(
            np.searchsorted(np.cumsum(block.lengths, dtype=np.int64), self.shard_tokens - self._buffer.num_tokens)
        )
        by_samples = self.shard_samples - self._buffer.num_samples - 1
        last = min(by_tokens, by_samples)
        return last + 1 if last < len(block) else None


def shard_states(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """Name and state of each finished shard in `folder`, in order, up to the first that is missing."""
    found: list[tuple[str, dict[str, Any]]] = []
    while (path := folder / shard_name(len(found))).exists():
        found.append((path.name, read_shard_state(path)))
    return found


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
