"""Next fit: samples in their own order, a new row as soon as one does not fit; GREEDY of Krell et al."""

import numpy as np


def next_fit(units: np.ndarray, capacity: int, max_segments: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Pack samples in order. Returns row_offsets int64[R + 1] and the samples in the order of segments, int64[M]."""
    ends = np.cumsum(units, dtype=np.int64)
    before = ends - units
    # The first sample that no longer fits a row that begins with sample i, for every i at once.
    following = np.searchsorted(ends, before + capacity, side="right")
    if max_segments is not None:
        following = np.minimum(following, np.arange(units.size) + max_segments)
    offsets = [0]
    at, stop = 0, units.size
    step = following.item
    while at < stop:
        at = step(at)
        offsets.append(at)
    return np.array(offsets, np.int64), np.arange(units.size)
