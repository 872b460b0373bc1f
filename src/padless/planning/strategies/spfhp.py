"""SPFHP, shortest-pack-first histogram-packing: longest first, each into the emptiest row (Krell et al. 2021)."""

import numpy as np

from padless.planning.open_rows import OpenRows
from padless.planning.patterns import Patterns


def spfhp(lengths: np.ndarray, counts: np.ndarray, capacity: int, max_segments: int | None) -> Patterns:
    """Pack a histogram of units, worst fit.

    Item by item: take samples from longest to shortest; put each into the row with the most free space, among
    equals into the one that got to that space last, unless the row was opened for this very length; open a row when
    none fits. Rows opened for a length hold one sample of it: that is what the published algorithm does.
    """
    open_rows = OpenRows(capacity, max_segments, int(lengths[0]))
    for length, count in zip(lengths[::-1].tolist(), counts[::-1].tolist(), strict=True):
        left = count
        while left and (space := open_rows.spaces.largest()) >= length:
            rows = min(open_rows.top(space)[0], left)
            open_rows.grow(space, rows, length, 1)
            left -= rows
        if left:
            open_rows.start(left, length, 1)
    return open_rows.patterns()
