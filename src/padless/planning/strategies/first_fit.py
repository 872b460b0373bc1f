"""First fit: samples in their own order, each into the first row opened that still fits it."""

import numpy as np

from padless.planning.compiled import run


def first_fit(units: np.ndarray, capacity: int, max_segments: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Pack samples in order, every row staying open. Returns row_offsets and the samples in the order of segments.

    A tree of maxima over the rows' free space finds the first row that fits in O(log rows).
    """
    samples = units.size
    leaves = 1 << max(1, (samples - 1).bit_length())
    tree = np.zeros(2 * leaves, np.int64)
    segments = np.zeros(samples, np.int64)
    row_of = np.zeros(samples, np.int64)
    most = max_segments if max_segments is not None else samples
    sizes = np.array(units, np.int64)
    rows = run(_place, samples * 8, sizes, capacity, most, leaves, tree, segments, row_of)
    return group_by_row(row_of, rows)


def group_by_row(row_of: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """CSR of samples by row, samples of one row in their own order."""
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=rows))])
    return offsets, np.argsort(row_of, kind="stable")


def _place(sizes, capacity, most, leaves, tree, segments, row_of):
    """Write the row of every sample; returns how many rows there are. Only opened rows have space in the tree."""
    rows = 0
    for i in range(len(sizes)):
        size = sizes[i]
        if tree[1] >= size:
            node = 1
            while node < leaves:
                node *= 2
                if tree[node] < size:
                    node += 1
            row = node - leaves
            space = tree[node] - size
        else:
            row = rows
            rows += 1
            space = capacity - size
        segments[row] += 1
        row_of[i] = row
        node = row + leaves
        tree[node] = 0 if segments[row] == most else space
        node //= 2
        while node >= 1:
            best = max(tree[2 * node], tree[2 * node + 1])
            if tree[node] == best:
                break
            tree[node] = best
            node //= 2
    return rows
