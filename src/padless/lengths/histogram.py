"""How many samples have which length: enough to plan a corpus of any size without its ids."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from padless.errors import PadlessError
from padless.lengths.checks import as_lengths

FORMAT = "padless.lengths"
VERSION = 1

# Below this longest length an array with one counter per length is cheaper than sorting the samples.
_COUNTABLE = 1 << 24


@dataclass(frozen=True, kw_only=True, eq=False)
class LengthHistogram:
    """Counts of samples by length, exact for lengths up to 2**31.

    Merging is associative and commutative, so shards may be counted apart and in any order.

    Args:
        lengths: int64[D], ascending, each from 1 to 2**31.
        counts: int64[D], each at least 1: samples of that length.

    Raises:
        PadlessError: Lengths that do not ascend, counts below 1, or shapes that differ.

    Example:
        >>> h = LengthHistogram.of([5, 2, 5]).merge(LengthHistogram.of([2, 9]))
        >>> h.lengths, h.counts, h.samples, h.tokens
        (array([2, 5, 9]), array([2, 2, 1]), 5, 23)
    """

    lengths: np.ndarray
    counts: np.ndarray

    def __post_init__(self) -> None:
        lengths = as_lengths(self.lengths).astype(np.int64, copy=False)
        counts = np.asarray(self.counts)
        if counts.shape != lengths.shape or counts.dtype.kind not in "iu":
            raise PadlessError(
                f"a histogram needs one whole count per length: {lengths.shape} lengths, counts {counts.shape} "
                f"of {counts.dtype}"
            )
        counts = counts.astype(np.int64, copy=False)
        if int(counts.min()) < 1:
            raise PadlessError("a histogram lists only lengths that occur: every count must be at least 1")
        if lengths.size > 1 and int(np.diff(lengths).min()) < 1:
            raise PadlessError("a histogram's lengths must ascend, each listed once")
        if int(lengths[-1]) > 1 << 31:
            raise PadlessError(f"a length of {int(lengths[-1])} tokens is above 2**31")
        for array in (lengths, counts):
            array.flags.writeable = False
        object.__setattr__(self, "lengths", lengths)
        object.__setattr__(self, "counts", counts)

    @classmethod
    def of(cls, lengths: Any) -> "LengthHistogram":
        """Count samples, `lengths` [N] in any order. Errors are those of `as_lengths`."""
        array = as_lengths(lengths)
        if int(array.max()) < _COUNTABLE:
            dense = np.bincount(array)
            present = np.flatnonzero(dense)
            return cls(lengths=present, counts=dense[present])
        values, counts = np.unique(array, return_counts=True)
        return cls(lengths=values, counts=counts)

    @classmethod
    def from_counts(cls, counts: Any, *, first: int = 1) -> "LengthHistogram":
        """Read a dense table where `counts[i]` samples have length `first + i`.

        Example:
            >>> LengthHistogram.from_counts([0, 3, 0, 1])
            LengthHistogram(4 samples of 2 to 4 tokens, 2 distinct lengths, 10 tokens)
        """
        dense = np.asarray(counts)
        if dense.ndim != 1 or dense.dtype.kind not in "iu":
            raise PadlessError(f"counts must be whole numbers [D], not {dense.dtype} {dense.shape}")
        present = np.flatnonzero(dense)
        return cls(lengths=present + first, counts=dense[present])

    @classmethod
    def merged(cls, parts: Iterable["LengthHistogram"]) -> "LengthHistogram":
        """Merge any number of histograms at once."""
        parts = list(parts)
        if not parts:
            raise PadlessError("no histograms given: there is nothing to merge")
        lengths, where = np.unique(np.concatenate([p.lengths for p in parts]), return_inverse=True)
        counts = np.zeros(lengths.size, np.int64)
        np.add.at(counts, where.reshape(-1), np.concatenate([p.counts for p in parts]))
        return cls(lengths=lengths, counts=counts)

    def merge(self, other: "LengthHistogram") -> "LengthHistogram":
        """The histogram of both sets of samples together."""
        return LengthHistogram.merged([self, other])

    @property
    def samples(self) -> int:
        """Number of samples."""
        return int(self.counts.sum())

    @property
    def tokens(self) -> int:
        """Number of tokens; exact beyond 2**63."""
        return _dot(self.lengths, self.counts)

    @property
    def sum_squares(self) -> int:
        """Sum of length**2 over samples, exact: the score elements of bidirectional attention."""
        return sum(n * n * c for n, c in zip(self.lengths.tolist(), self.counts.tolist(), strict=True))

    @property
    def longest(self) -> int:
        """The longest length, in tokens."""
        return int(self.lengths[-1])

    def padded(self, align: int) -> "LengthHistogram":
        """The histogram in units of `align` tokens, every length rounded up to whole units."""
        if align == 1:
            return self
        units, where = np.unique(-(-self.lengths // align), return_inverse=True)
        counts = np.zeros(units.size, np.int64)
        np.add.at(counts, where.reshape(-1), self.counts)
        return LengthHistogram(lengths=units, counts=counts)

    def save(self, path: str | Path) -> None:
        """Write to `.npz`; equal histograms give equal bytes."""
        from padless.lengths.files import write_arrays

        header = json.dumps({"format": FORMAT, "version": VERSION}, sort_keys=True)
        write_arrays(Path(path), {"lengths": self.lengths, "counts": self.counts}, header)

    @classmethod
    def load(cls, path: str | Path) -> "LengthHistogram":
        """Read what `save` wrote.

        Raises:
            PadlessError: Not a histogram of padless, damaged, or written by a newer version.
        """
        from padless.lengths.files import read_arrays

        arrays, _ = read_arrays(Path(path), FORMAT, VERSION)
        return cls(lengths=arrays["lengths"], counts=arrays["counts"])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LengthHistogram):
            return NotImplemented
        return np.array_equal(self.lengths, other.lengths) and np.array_equal(self.counts, other.counts)

    def __repr__(self) -> str:
        return (
            f"LengthHistogram({self.samples:,} samples of {self.lengths[0]:,} to {self.longest:,} tokens, "
            f"{self.lengths.size:,} distinct lengths, {self.tokens:,} tokens)"
        )


def _dot(lengths: np.ndarray, counts: np.ndarray) -> int:
    return sum(n * c for n, c in zip(lengths.tolist(), counts.tolist(), strict=True))
