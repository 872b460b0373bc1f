"""Packing a stream: a few open rows, best fit, and no sample waits for long."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from padless.errors import PadlessError

STATE_VERSION = 1


@dataclass
class _Row:
    space: int
    opened: int
    samples: list[int]


class OnlinePacker:
    """Packs samples as they arrive, with bounded look-ahead and bounded waiting.

    A sample goes at once into the fullest open row that fits it, else into a new one. When more than `lookahead`
    rows would be open the fullest is sent out, and a row is sent out when `max_wait` samples arrived since it was
    opened: so no sample waits longer than that. The state is small and resumes exactly.

    Args:
        capacity: Units per row.
        lookahead: Most rows open at once.
        max_wait: Most samples that may arrive while a row is open.
        max_segments: Most segments in a row, or None.

    Example:
        >>> packer = OnlinePacker(capacity=10, lookahead=2)
        >>> [row for length in (6, 7, 4, 3) for row in packer.add(length)]
        [[0, 2], [1, 3]]
        >>> packer.flush()
        []
    """

    def __init__(
        self, *, capacity: int, lookahead: int = 64, max_wait: int = 4096, max_segments: int | None = None
    ) -> None:
        self.capacity = capacity
        self.lookahead = lookahead
        self.max_wait = max_wait
        self.max_segments = max_segments if max_segments is not None else capacity
        self._arrived = 0
        self._open: list[_Row] = []  # in the order in which they were opened

    def add(self, length: int) -> Iterator[list[int]]:
        """Take the next sample; gives the rows that are ready, as numbers of arrival.

        Raises:
            PadlessError: A length below 1 or above the capacity.
        """
        if not 1 <= length <= self.capacity:
            raise PadlessError(f"sample {self._arrived} of {length} units does not fit a row of {self.capacity}")
        sample = self._arrived
        self._arrived += 1
        ready = []
        fitting = [row for row in self._open if row.space >= length]
        if fitting:
            row = min(fitting, key=lambda r: r.space)
        else:
            if len(self._open) == self.lookahead:
                ready.append(self._send(min(self._open, key=lambda r: r.space)))
            row = _Row(self.capacity, sample, [])
            self._open.append(row)
        row.space -= length
        row.samples.append(sample)
        if row.space == 0 or len(row.samples) == self.max_segments:
            ready.append(self._send(row))
        if self._open and self._arrived - self._open[0].opened > self.max_wait:
            ready.append(self._send(self._open[0]))
        return iter(ready)

    def flush(self) -> list[list[int]]:
        """Send out every open row: the stream has ended."""
        return [self._send(row) for row in list(self._open)]

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on; plain values."""
        return {
            "version": STATE_VERSION,
            "settings": self._settings(),
            "arrived": self._arrived,
            "open": [[row.space, row.opened, list(row.samples)] for row in self._open],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same version and settings; anything else is refused."""
        if state.get("version") != STATE_VERSION:
            raise PadlessError(f"packer state has version {state.get('version')!r}, expected {STATE_VERSION}")
        if state["settings"] != self._settings():
            raise PadlessError(f"the state was made with {state['settings']}, this packer has {self._settings()}")
        self._arrived = state["arrived"]
        self._open = [_Row(space, opened, list(samples)) for space, opened, samples in state["open"]]

    def _settings(self) -> dict[str, int]:
        names = ("capacity", "lookahead", "max_wait", "max_segments")
        return {name: getattr(self, name) for name in names}

    def _send(self, row: _Row) -> list[int]:
        self._open = [other for other in self._open if other is not row]
        return row.samples


def online(
    units: np.ndarray, capacity: int, max_segments: int | None, *, lookahead: int, max_wait: int
) -> tuple[np.ndarray, np.ndarray]:
    """Run the samples through `OnlinePacker` in their own order; rows stand in the order in which they got ready."""
    packer = OnlinePacker(capacity=capacity, lookahead=lookahead, max_wait=max_wait, max_segments=max_segments)
    rows = [row for length in units.tolist() for row in packer.add(length)]
    rows += packer.flush()
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return offsets, np.concatenate([np.array(row, np.int64) for row in rows])
