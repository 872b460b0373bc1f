"""Rows of near-equal cost: longest first, each to the row that costs least so far, after WLB-LLM."""

import heapq

import numpy as np

from padless.planning.patterns import Patterns
from padless.planning.strategies.best_fit_decreasing import best_fit_decreasing


def balanced(
    lengths: np.ndarray, counts: np.ndarray, capacity: int, max_segments: int | None, *, linear: float, quadratic: float
) -> Patterns:
    """Pack a histogram of units so that `linear * tokens + quadratic * sum(length**2)` hardly differs between rows.

    As many rows as best fit decreasing needs are open from the start. Samples go from longest to shortest to the
    row that costs least if it fits there, else to the row with the most free space if it fits there, else to a new
    row: the rule of WLB-LLM (OSDI 2025, section 4) for a fixed set of micro-batches. Groups of equal rows move
    together, so the work depends on distinct lengths more than on samples.

    Args:
        lengths: int64[D] ascending, units.
        counts: int64[D].
        capacity: Units per row.
        max_segments: Most segments in a row, or None.
        linear: Cost of a unit.
        quadratic: Cost of a squared unit.
    """
    rows = best_fit_decreasing(lengths, counts, capacity, max_segments).rows
    groups = _Groups(capacity, max_segments, rows)
    for length, count in zip(lengths[::-1].tolist(), counts[::-1].tolist(), strict=True):
        cost = linear * length + quadratic * length * length
        left = count
        while left:
            left -= groups.place(length, cost, left)
    return Patterns.of(groups.kinds())


class _Groups:
    """Groups of equal rows under two orders, cost and free space; ties go to the older group."""

    def __init__(self, capacity: int, max_segments: int | None, rows: int) -> None:
        self._capacity = capacity
        self._most = max_segments if max_segments is not None else capacity
        self._nodes: list[tuple[int, int]] = []
        self._groups: list[tuple[float, int, int, int]] = []  # cost, free space, segments, kind; index is the age
        self._rows: list[int] = []
        self._by_cost: list[tuple[float, int]] = []
        self._by_space: list[tuple[float, int]] = []
        self._add(rows, 0.0, capacity, 0, -1)

    def place(self, length: int, cost: float, left: int) -> int:
        """Put one sample of `length` into each of up to `left` equal rows; returns how many."""
        group = self._choose(length)
        old_cost, space, segments, kind = self._groups[group]
        rows = min(left, self._rows[group])
        self._rows[group] -= rows
        self._nodes.append((kind, length))
        self._add(rows, old_cost + cost, space - length, segments + 1, len(self._nodes) - 1)
        return rows

    def kinds(self) -> list[tuple[int, list[tuple[int, int]]]]:
        found = []
        for rows, (_, _, segments, kind) in zip(self._rows, self._groups, strict=True):
            if rows and segments:
                found.append((rows, self._runs(kind)))
        return found

    def _choose(self, length: int) -> int:
        for heap in (self._by_cost, self._by_space):
            while heap and not self._open(heap[0][1]):
                heapq.heappop(heap)
            if heap and self._groups[heap[0][1]][1] >= length:
                return heap[0][1]
        return self._add(1, 0.0, self._capacity, 0, -1)

    def _open(self, group: int) -> bool:
        return self._rows[group] > 0 and self._groups[group][2] < self._most

    def _add(self, rows: int, cost: float, space: int, segments: int, kind: int) -> int:
        group = len(self._groups)
        self._groups.append((cost, space, segments, kind))
        self._rows.append(rows)
        if segments < self._most and space:
            heapq.heappush(self._by_cost, (cost, group))
            heapq.heappush(self._by_space, (-space, group))
        return group

    def _runs(self, kind: int) -> list[tuple[int, int]]:
        runs: list[tuple[int, int]] = []
        while kind >= 0:
            kind, length = self._nodes[kind]
            runs.append((length, 1))
        return runs[::-1]
