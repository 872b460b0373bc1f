"""Rows that look alike, counted instead of listed: what strategies on the histogram give back."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True, eq=False)
class Patterns:
    """Kinds of rows as runs of equal lengths.

    Attributes:
        counts: int64[P], how many rows are of kind p.
        offsets: int64[P + 1], the runs of kind p are `offsets[p] : offsets[p + 1]`.
        lengths: int64[K], the length in units of each run.
        repeats: int64[K], how many segments of that length follow each other.
    """

    counts: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray
    repeats: np.ndarray

    @classmethod
    def of(cls, kinds: Iterable[tuple[int, list[tuple[int, int]]]]) -> "Patterns":
        """Collect `(rows, [(length, repeat), ...])`.

        Example:
            >>> Patterns.of([(7, [(5, 1), (2, 2)])]).rows
            7
        """
        kinds = list(kinds)
        runs = [run for _, runs in kinds for run in runs]
        return cls(
            counts=np.array([count for count, _ in kinds], np.int64),
            offsets=np.cumsum([0, *(len(runs) for _, runs in kinds)], dtype=np.int64),
            lengths=np.array([length for length, _ in runs], np.int64),
            repeats=np.array([repeat for _, repeat in runs], np.int64),
        )

    @property
    def rows(self) -> int:
        """Number of rows, all kinds together."""
        return int(self.counts.sum())

    @property
    def widths(self) -> np.ndarray:
        """int64[P], segments per row of each kind."""
        return self._per_kind(self.repeats)

    @property
    def used(self) -> np.ndarray:
        """int64[P], units taken per row of each kind."""
        return self._per_kind(self.lengths * self.repeats)

    def joined(self, other: "Patterns") -> "Patterns":
        """Both, one after the other."""
        return Patterns(
            counts=np.concatenate([self.counts, other.counts]),
            offsets=np.concatenate([self.offsets, self.offsets[-1] + other.offsets[1:]]),
            lengths=np.concatenate([self.lengths, other.lengths]),
            repeats=np.concatenate([self.repeats, other.repeats]),
        )

    def totals(self) -> tuple[np.ndarray, np.ndarray]:
        """Samples placed by length: ascending lengths and their counts."""
        lengths, where = np.unique(self.lengths, return_inverse=True)
        counts = np.zeros(lengths.size, np.int64)
        np.add.at(counts, where.reshape(-1), self.repeats * np.repeat(self.counts, np.diff(self.offsets)))
        return lengths, counts

    def _per_kind(self, per_run: np.ndarray) -> np.ndarray:
        ends = np.concatenate([[0], np.cumsum(per_run)])
        return ends[self.offsets[1:]] - ends[self.offsets[:-1]]
