"""First fit decreasing: longest first, each into the first row opened that still fits it."""

import numpy as np

from padless.planning.patterns import Patterns


def first_fit_decreasing(lengths: np.ndarray, counts: np.ndarray, capacity: int, max_segments: int | None) -> Patterns:
    """Pack a histogram of units; neighbouring equal rows are one group, and a whole length moves at once.

    First fit fills each row with the current length before it looks at the next one. So the groups that fit are
    taken in the order in which they were opened, each row taking `space // length` samples, until the samples run
    out in the middle of at most one group; that group splits in three.
    """
    most = max_segments if max_segments is not None else capacity
    rows = np.zeros(0, np.int64)  # groups in opening order: number of rows, free space, segments that may still come
    space, free, kind = rows.copy(), rows.copy(), rows.copy()
    nodes: list[tuple[int, int, int]] = []
    done: list[tuple[int, int]] = []
    for length, count in zip(lengths[::-1].tolist(), counts[::-1].tolist(), strict=True):
        each = np.minimum(space // length, free)
        fits = np.flatnonzero(each)
        taken = np.cumsum(rows[fits] * each[fits])
        whole = int(np.searchsorted(taken, count, side="right"))  # groups that fill up completely
        left = count - (int(taken[whole - 1]) if whole else 0)
        full, left_group = fits[:whole], fits[whole : whole + 1]
        for group in full.tolist():
            nodes.append((int(kind[group]), length, int(each[group])))
            kind[group] = len(nodes) - 1
        space[full] -= each[full] * length
        free[full] -= each[full]
        if left and left_group.size:
            rows, space, free, kind = _split(rows, space, free, kind, int(left_group[0]), length, left, nodes)
            left = 0
        rows, space, free, kind = _open(rows, space, free, kind, length, left, capacity, most, nodes)
        closed = (free == 0) | (space < lengths[0])
        done += zip(rows[closed].tolist(), kind[closed].tolist(), strict=True)
        rows, space, free, kind = rows[~closed], space[~closed], free[~closed], kind[~closed]
    done += zip(rows.tolist(), kind.tolist(), strict=True)
    return Patterns.of((count, _runs(nodes, node)) for count, node in done)


def _parts(group: int, space: int, most: int, length: int, left: int) -> list[tuple[int, int]]:
    """`(rows, samples each)` when `left` samples go into the first rows of a group that could take more."""
    each = min(space // length, most)
    whole, rest = divmod(left, each)
    parts = [(whole, each), (1 if rest else 0, rest), (group - whole - (1 if rest else 0), 0)]
    return [(rows, samples) for rows, samples in parts if rows]


def _split(rows, space, free, kind, at, length, left, nodes):
    parts = _parts(int(rows[at]), int(space[at]), int(free[at]), length, left)
    kinds = []
    for _, samples in parts:
        if samples:
            nodes.append((int(kind[at]), length, samples))
        kinds.append(len(nodes) - 1 if samples else int(kind[at]))
    samples = np.array([s for _, s in parts])
    new = (np.array([r for r, _ in parts]), space[at] - samples * length, free[at] - samples, np.array(kinds))
    old = (rows, space, free, kind)
    return tuple(np.concatenate([a[:at], b, a[at + 1 :]]) for a, b in zip(old, new, strict=True))


def _open(rows, space, free, kind, length, left, capacity, most, nodes):
    if not left:
        return rows, space, free, kind
    each = min(capacity // length, most)
    parts = [(r, s) for r, s in ((left // each, each), (1 if left % each else 0, left % each)) if r]
    kinds = []
    for _, samples in parts:
        nodes.append((-1, length, samples))
        kinds.append(len(nodes) - 1)
    samples = np.array([s for _, s in parts])
    new = (np.array([r for r, _ in parts]), capacity - samples * length, most - samples, np.array(kinds))
    return tuple(np.concatenate([a, b]) for a, b in zip((rows, space, free, kind), new, strict=True))


def _runs(nodes: list[tuple[int, int, int]], kind: int) -> list[tuple[int, int]]:
    runs = []
    while kind >= 0:
        kind, length, repeat = nodes[kind]
        runs.append((length, repeat))
    return runs[::-1]
