"""Open rows by free space: groups of equal rows on stacks, with the nearest fitting space found fast."""


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


class OpenRows:
    """Groups `(rows, kind, segments)` of equal rows by their free space, last in first out; closed ones aside.

    A kind is a node of a tree: its parent plus a run of equal lengths, so growing a row copies nothing.
    """

    def __init__(self, capacity: int, max_segments: int | None, shortest: int) -> None:
        self.capacity = capacity
        self.max_segments = max_segments if max_segments is not None else capacity
        self.shortest = shortest
        self.spaces = Spaces(capacity)
        self._stacks: dict[int, list[tuple[int, int, int]]] = {}
        self._nodes: list[tuple[int, int, int]] = []
        self._closed: list[tuple[int, int]] = []

    def top(self, space: int) -> tuple[int, int, int]:
        """The group `(rows, kind, segments)` last put at this free space."""
        return self._stacks[space][-1]

    def take(self, space: int, rows: int) -> None:
        """Remove `rows` rows from the group on top."""
        stack = self._stacks[space]
        count, kind, segments = stack[-1]
        if count > rows:
            stack[-1] = (count - rows, kind, segments)
            return
        stack.pop()
        if not stack:
            self.spaces.remove(space)

    def put(self, rows: int, kind: int, segments: int, space: int, length: int, repeat: int) -> None:
        """Add `repeat` segments of `length` to `rows` rows of a kind (-1: new) that had `space` left."""
        self._nodes.append((kind, length, repeat))
        kind = len(self._nodes) - 1
        segments += repeat
        space -= length * repeat
        if space < self.shortest or segments >= self.max_segments:
            self._closed.append((rows, kind))
            return
        stack = self._stacks.setdefault(space, [])
        if not stack:
            self.spaces.add(space)
        stack.append((rows, kind, segments))

    def kinds(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """Every row there is: `(rows, runs)`, in a fixed order, longest run first."""
        groups = self._closed + [
            (rows, kind) for space in sorted(self._stacks) for rows, kind, _ in self._stacks[space]
        ]
        return [(rows, self._runs(kind)) for rows, kind in groups]

    def _runs(self, kind: int) -> list[tuple[int, int]]:
        runs = []
        while kind >= 0:
            kind, length, repeat = self._nodes[kind]
            runs.append((length, repeat))
        runs.reverse()
        return runs
