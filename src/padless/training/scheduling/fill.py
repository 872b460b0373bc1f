"""Least work first: samples to ranks, and a rank's samples to its micro-batches."""

import heapq

import numpy as np

REFINED = 1e-3
"""Ranks within this of the mean are left alone."""


def least_work_first(works: np.ndarray, bins: int) -> np.ndarray:
    """Give each sample, dearest first, to the bin that has least so far (Graham 1969).

    Args:
        works: int64[N].
        bins: How many bins there are.

    Returns:
        int64[N], the bin of each sample; ties go to the lower bin.

    Example:
        >>> least_work_first(np.array([5, 9, 4, 8]), 2).tolist()
        [1, 0, 0, 1]
    """
    owner = [0] * len(works)
    heap = [(0, b) for b in range(bins)]
    order = np.argsort(-works, kind="stable")
    for i, work in zip(order.tolist(), works[order].tolist(), strict=True):
        load, b = heap[0]
        owner[i] = b
        heapq.heapreplace(heap, (load + work, b))
    return np.array(owner, dtype=np.int64)


def refine(
    owner: np.ndarray, works: np.ndarray, bins: int, slots: np.ndarray | None = None, room: int = 0
) -> np.ndarray:
    """Move or swap samples between the dearest and the cheapest bin while that brings them closer.

    Args:
        owner: int64[N], the bin of each sample.
        works: int64[N].
        bins: How many bins there are.
        slots: int64[N], slots of each sample, when bins have limited `room`.
        room: Most slots in a bin.

    Returns:
        int64[N], better owners or the same. No bin gains a sample without losing one, except the cheapest.

    Example:
        >>> refine(np.array([0, 0, 1, 1, 1]), np.array([3, 3, 2, 2, 2]), 2).tolist()
        [0, 0, 1, 1, 1]
        >>> refine(np.array([0, 0, 1, 1]), np.array([9, 5, 4, 2]), 2).tolist()
        [1, 0, 0, 1]
    """
    owner = owner.copy()
    loads = np.zeros(bins, np.int64)
    np.add.at(loads, owner, works)
    used = np.zeros(bins, np.int64)
    if slots is not None:
        np.add.at(used, owner, slots)
    enough = int(loads.sum()) / bins * (1 + REFINED)
    for _ in range(4 * bins):
        high, low = int(loads.argmax()), int(loads.argmin())
        if loads[high] <= enough:
            break
        mine, theirs = np.flatnonzero(owner == high), np.flatnonzero(owner == low)
        swap = _best_swap(works, mine, theirs, int(loads[high] - loads[low]), slots, room - used[[high, low]])
        if swap is None:
            break
        a, b = swap
        owner[a] = low
        delta = works[a] - (works[b] if b >= 0 else 0)
        moved = 0 if slots is None else slots[a] - (slots[b] if b >= 0 else 0)
        if b >= 0:
            owner[b] = high
        loads[[high, low]] += [-delta, delta]
        used[[high, low]] += [-moved, moved]
    return owner


def _best_swap(
    works: np.ndarray, mine: np.ndarray, theirs: np.ndarray, gap: int, slots: np.ndarray | None, free: np.ndarray
) -> tuple[int, int] | None:
    """Which sample to give for which (-1: for none), so that half of the gap moves, as nearly as can be."""
    theirs = theirs[np.argsort(works[theirs], kind="stable")]
    theirs = np.concatenate([[-1], theirs]) if len(mine) > 1 else theirs
    if not len(theirs):
        return None
    their_works = np.where(theirs >= 0, works[theirs], 0)
    at = np.searchsorted(their_works, works[mine] - gap // 2)
    a = np.concatenate([mine, mine])
    b = theirs[np.clip(np.concatenate([at - 1, at]), 0, len(theirs) - 1)]
    change = works[a] - np.where(b >= 0, works[b], 0)
    allowed = (change > 0) & (change < gap)
    if slots is not None:
        moved = slots[a] - np.where(b >= 0, slots[b], 0)
        allowed &= (moved <= free[1]) & (-moved <= free[0])
    if not allowed.any():
        return None
    best = int(np.where(allowed, np.abs(2 * change - gap), np.iinfo(np.int64).max).argmin())
    return int(a[best]), int(b[best])


def into_bins(
    works: np.ndarray, slots: np.ndarray, bins: int, *, room: int, most: int | None
) -> list[list[int]] | None:
    """Put samples into `bins` bins of limited room, near-equal in work: the rule of WLB-LLM (section 4).

    Dearest first, each to the bin that has least work; where it does not fit there, to the one that has most room.

    Returns:
        The samples of each bin, bins in descending order of work; None when some sample fits nowhere.

    Example:
        >>> into_bins(np.array([9, 4, 4]), np.array([3, 2, 2]), 2, room=4, most=None)
        [[0], [1, 2]]
        >>> into_bins(np.array([9, 4, 4]), np.array([3, 2, 2]), 1, room=4, most=None) is None
        True
    """
    found: list[list[int]] = [[] for _ in range(bins)]
    load, used = [0] * bins, [0] * bins
    limit = len(works) if most is None else most
    by_load = [(0, 0, b) for b in range(bins)]  # (work, samples, bin); an entry of another count is out of date
    by_room = list(by_load)
    order = np.argsort(-works, kind="stable")
    for i, work, size in zip(order.tolist(), works[order].tolist(), slots[order].tolist(), strict=True):
        b = _top(by_load, found, limit)
        if b is not None and used[b] + size > room:
            b = _top(by_room, found, limit)
        if b is None or used[b] + size > room:
            return None
        found[b].append(i)
        load[b] += work
        used[b] += size
        heapq.heappush(by_load, (load[b], len(found[b]), b))
        heapq.heappush(by_room, (used[b], len(found[b]), b))
    return [found[b] for b in sorted(range(bins), key=lambda b: (-load[b], b))]


def _top(heap: list[tuple[int, int, int]], found: list[list[int]], limit: int) -> int | None:
    """The first bin of the heap that may take another sample."""
    while heap and (heap[0][1] != len(found[heap[0][2]]) or heap[0][1] >= limit):
        heapq.heappop(heap)
    return heap[0][2] if heap else None
