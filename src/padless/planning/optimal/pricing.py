"""Pricing: the most valuable row for given prices of the lengths, by dynamic programming over the free space.

Prices are whole numbers, so the value of the best row is exact, and with it the bound that it proves.
"""

from dataclasses import dataclass

import numpy as np

from padless.planning.compiled import jit

UNIT = 1 << 40  # a price of 1.0: the value at which a row pays for itself


@dataclass(frozen=True, eq=False)
class Columns:
    """Rows as sparse columns: `lengths[offsets[p] : offsets[p + 1]]` are class numbers, `repeats` how often each."""

    offsets: np.ndarray
    classes: np.ndarray
    repeats: np.ndarray

    def keys(self) -> list[bytes]:
        """One name per column."""
        both = np.stack([self.classes, self.repeats], axis=1)
        return [both[a:b].tobytes() for a, b in zip(self.offsets[:-1], self.offsets[1:], strict=True)]

    def values(self, prices: np.ndarray) -> np.ndarray:
        """What each column is worth."""
        worth = np.concatenate([[0], np.cumsum(prices[self.classes] * self.repeats)])
        return worth[self.offsets[1:]] - worth[self.offsets[:-1]]

    def only(self, chosen: np.ndarray) -> "Columns":
        """The chosen columns, in the order given."""
        widths = np.diff(self.offsets)[chosen]
        offsets = np.concatenate([[0], np.cumsum(widths)])
        where = np.repeat(self.offsets[chosen] - offsets[:-1], widths) + np.arange(offsets[-1])
        return Columns(offsets, self.classes[where], self.repeats[where])

    def joined(self, other: "Columns") -> "Columns":
        """Both, one after the other."""
        return Columns(
            np.concatenate([self.offsets, self.offsets[-1] + other.offsets[1:]]),
            np.concatenate([self.classes, other.classes]),
            np.concatenate([self.repeats, other.repeats]),
        )

    def __len__(self) -> int:
        return self.offsets.size - 1


def price(lengths: np.ndarray, prices: np.ndarray, capacity: int, max_segments: int | None) -> tuple[int, Columns]:
    """Find the value of the best row, and for every length the best row that holds it.

    Args:
        lengths: int64[D], ascending, units.
        prices: int64[D], at least 0, in 1 / UNIT.
        capacity: Units per row.
        max_segments: Most segments in a row, or None.

    Returns:
        The value of the best row of all, exact; and D columns.
    """
    limited = max_segments is not None and max_segments < capacity // int(lengths[0])
    layers = max_segments if limited and max_segments is not None else 1
    useful = _useful(prices)
    best, choice = jit(_layered if limited else _unbounded)(lengths, prices, useful, capacity, layers)
    longest = min(capacity // int(lengths[0]), layers if limited else capacity) + 1
    offsets, classes, repeats = jit(_columns)(lengths, choice, capacity, layers, limited, longest)
    return int(best), Columns(offsets, classes, repeats)


def _useful(prices: np.ndarray) -> np.ndarray:
    """Lengths worth more than every shorter one; the others never make a row better."""
    before = np.concatenate([[0], np.maximum.accumulate(prices)[:-1]])
    return np.flatnonzero(prices > before)


def _unbounded(lengths, prices, useful, capacity, layers):  # noqa: ARG001 - compiled by numba
    best = np.zeros(capacity + 1, np.int64)
    choice = np.full((1, capacity + 1), -1, np.int32)
    row = choice[0]
    for u in range(useful.size):
        item = useful[u]
        length = lengths[item]
        worth = prices[item]
        for w in range(length, capacity + 1):
            value = best[w - length] + worth
            if value > best[w]:
                best[w] = value
                row[w] = item
    return best[capacity], choice


def _layered(lengths, prices, useful, capacity, layers):
    """Layer k holds the best rows of at most k + 1 segments."""
    choice = np.full((layers, capacity + 1), -1, np.int32)
    before = np.zeros(capacity + 1, np.int64)
    for k in range(layers):
        best = np.zeros(capacity + 1, np.int64)
        row = choice[k]
        for u in range(useful.size):
            item = useful[u]
            length = lengths[item]
            worth = prices[item]
            for w in range(length, capacity + 1):
                value = before[w - length] + worth
                if value > best[w]:
                    best[w] = value
                    row[w] = item
        before = best
    return before[capacity], choice


def _columns(lengths, choice, capacity, layers, limited, longest):
    """For every length, itself and the best filling of what is left; classes ascending, equal ones counted."""
    number = lengths.size
    offsets = np.zeros(number + 1, np.int64)
    room = number * 8
    classes = np.empty(room, np.int32)
    repeats = np.empty(room, np.int32)
    picked = np.empty(longest + 1, np.int32)
    end = 0
    for first in range(number):
        picked[0] = first
        size = 1
        space = capacity - lengths[first]
        layer = layers - 2 if limited else 0
        while layer >= 0:
            item = choice[layer, space]
            if item < 0:
                break
            picked[size] = item
            size += 1
            space -= lengths[item]
            if limited:
                layer -= 1
        picked[:size].sort()
        if end + size > room:
            room = 2 * (end + size)
            more_classes = np.empty(room, np.int32)
            more_repeats = np.empty(room, np.int32)
            more_classes[:end] = classes[:end]
            more_repeats[:end] = repeats[:end]
            classes = more_classes
            repeats = more_repeats
        start = end
        for i in range(size):
            if end > start and classes[end - 1] == picked[i]:
                repeats[end - 1] += 1
            else:
                classes[end] = picked[i]
                repeats[end] = 1
                end += 1
        offsets[first + 1] = end
    return offsets, classes[:end].copy(), repeats[:end].copy()
