"""Best fit decreasing: longest first, each into the fullest row it still fits; also LPFHP of Krell et al."""

import numpy as np

from padless.planning.open_rows import OpenRows
from padless.planning.patterns import Patterns


def best_fit_decreasing(lengths: np.ndarray, counts: np.ndarray, capacity: int, max_segments: int | None) -> Patterns:
    """Pack a histogram of units; whole groups of equal rows move at once.

    Item by item: take samples from longest to shortest; put each into the row with the least free space that fits
    it, among equals into the one that got to that space last; open a row when none fits. A row that took one sample
    of a length is from then on the fullest that fits the next one, so a group of equal rows takes
    `space // length` of them each, one row after the other: that is the step below. LPFHP (Krell et al. 2021,
    "longest-pack-first histogram-packing") is this algorithm.
    """
    open_rows = OpenRows(capacity, max_segments, int(lengths[0]))
    at_least, top = open_rows.spaces.at_least, open_rows.top
    most = open_rows.max_segments
    for length, count in zip(lengths[::-1].tolist(), counts[::-1].tolist(), strict=True):
        left = count
        while left:
            space = at_least(length)
            if space < 0:
                each = min(capacity // length, most, left)
                rows = left // each
                open_rows.start(rows, length, each)
            else:
                group, _, segments = top(space)
                each = min(space // length, most - segments, left)
                rows = min(group, left // each)
                open_rows.grow(space, rows, length, each)
            left -= rows * each
    return open_rows.patterns()
