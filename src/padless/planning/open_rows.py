"""Open rows by free space: groups of equal rows on stacks, with the nearest fitting space found fast."""

from typing import Any

import numpy as np

from padless.planning.patterns import Patterns


class Spaces:
    """A set of whole numbers from 0 to `largest` with successor and maximum, in Python's own big integers.

    Two levels of about sqrt(largest) bits each, so that a lookup shifts short integers whatever the capacity.
    """

    def __init__(self, largest: int) -> None:
        self._bits = max(6, (largest.bit_length() + 1) // 2)
        self._mask = (1 << self._bits) - 1
        self._words: dict[int, int] = {}
        self._summary = 0

    def add(self, value: int) -> None:
        """Put a value in; it may be there already."""
        high = value >> self._bits
        word = self._words.get(high, 0)
        if not word:
            self._summary |= 1 << high
        self._words[high] = word | 1 << (value & self._mask)

    def remove(self, value: int) -> None:
        """Take a value out that is there."""
        high = value >> self._bits
        word = self._words[high] ^ 1 << (value & self._mask)
        self._words[high] = word
        if not word:
            self._summary ^= 1 << high

    def at_least(self, value: int) -> int:
        """The smallest member at or above `value`, or -1."""
        high, low = value >> self._bits, value & self._mask
        word = self._words.get(high, 0) >> low
        if word:
            return value + (word & -word).bit_length() - 1
        rest = self._summary >> (high + 1)
        if not rest:
            return -1
        high += (rest & -rest).bit_length()
        word = self._words[high]
        return (high << self._bits) + (word & -word).bit_length() - 1

    def largest(self) -> int:
        """The largest member, or -1."""
        if not self._summary:
            return -1
        high = self._summary.bit_length() - 1
        return (high << self._bits) + self._words[high].bit_length() - 1


Kind = tuple[Any, int, int]  # the row before, and a run that was added to it: length, repeat


class OpenRows:
    """Groups `(rows, kind, segments)` of equal rows by their free space, last in first out; closed ones aside.

    A kind is a chain of runs that ends in None, so growing a row copies nothing.
    """

    def __init__(self, capacity: int, max_segments: int | None, shortest: int) -> None:
        self.capacity = capacity
        self.max_segments = max_segments if max_segments is not None else capacity
        self.shortest = shortest
        self.spaces = Spaces(capacity)
        self._stacks: dict[int, list[tuple[int, Kind, int]]] = {}
        self._closed: list[tuple[int, Kind]] = []

    def top(self, space: int) -> tuple[int, Kind, int]:
        """The group `(rows, kind, segments)` last put at this free space."""
        return self._stacks[space][-1]

    def start(self, rows: int, length: int, repeat: int) -> None:
        """Open `rows` rows, each with `repeat` segments of `length`."""
        self._put(rows, (None, length, repeat), repeat, self.capacity - length * repeat)

    def grow(self, space: int, rows: int, length: int, repeat: int) -> None:
        """Add `repeat` segments of `length` to `rows` rows of the group on top at `space`."""
        stack = self._stacks[space]
        count, kind, segments = stack[-1]
        if count > rows:
            stack[-1] = (count - rows, kind, segments)
        else:
            stack.pop()
            if not stack:
                self.spaces.remove(space)
        self._put(rows, (kind, length, repeat), segments + repeat, space - length * repeat)

    def patterns(self) -> Patterns:
        """Every row there is, in a fixed order, each with its longest run first."""
        groups = self._closed + [
            (rows, kind) for space in sorted(self._stacks) for rows, kind, _ in self._stacks[space]
        ]
        lengths, repeats, ends = [], [], [0]
        for _, last in reversed(groups):  # chains are read from their end, so everything is read backwards
            kind = last
            while kind is not None:
                kind, length, repeat = kind
                lengths.append(length)
                repeats.append(repeat)
            ends.append(len(lengths))
        return Patterns(
            counts=np.array([rows for rows, _ in groups], np.int64),
            offsets=len(lengths) - np.array(ends[::-1], np.int64),
            lengths=np.array(lengths[::-1], np.int64),
            repeats=np.array(repeats[::-1], np.int64),
        )

    def _put(self, rows: int, kind: Kind, segments: int, space: int) -> None:
        if space < self.shortest or segments >= self.max_segments:
            self._closed.append((rows, kind))
            return
        stack = self._stacks.get(space)
        if stack is None:
            self._stacks[space] = stack = []
        if not stack:
            self.spaces.add(space)
        stack.append((rows, kind, segments))
