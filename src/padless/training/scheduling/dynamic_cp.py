"""`dynamic-cp`: long samples over more ranks, short ones on one, so that no rank waits and nothing is too long."""

import heapq
import itertools
import math
from typing import NamedTuple

import numpy as np

from padless.errors import PadlessError
from padless.training.scheduling.assignment import Assignment, Bin, Samples
from padless.training.scheduling.fill import into_bins
from padless.training.scheduling.limits import for_stages, multiple_of, refuse_oversize
from padless.training.scheduling.spec import SchedulingSpec

SHARES = (1.0, 0.7, 0.5, 0.25, 0.1, 0.05, 0.02)
"""How much of the mean rank's work a sample may be on one of its ranks; tried until ranks are even."""
EVEN = 1.005
"""Ranks are even when the last one is done within this of the mean."""
WIDER = 0.03
"""Twice as many ranks for all work communicate more: worth it where they end sooner by this share."""


class _Layout(NamedTuple):
    """One way to place all samples: int64[N] each, and the time at which each rank is done.

    Attributes:
        width: Ranks that share each sample.
        first: The first of them.
        start: When it begins, in the unit of work.
        times: How long it takes each of its ranks.
        done: int64[ranks].
    """

    width: np.ndarray
    first: np.ndarray
    start: np.ndarray
    times: np.ndarray
    done: np.ndarray


def dynamic_cp(samples: Samples, spec: SchedulingSpec) -> Assignment:
    """Give each sample as many ranks as it needs, by its length and by its work, out of all `dp * cp`.

    A sample takes the fewest ranks that hold it and keep its work on one of them below a share of the mean rank's. The
    widest go first, each to the group of neighbours that is free first; samples of one rank level the ranks out.
    Smaller shares are tried until ranks are within 0.5 %, then wider groups for all; failing that, or with pipeline
    stages, what ends soonest is taken, 3 % later for each doubling of the ranks that share work, because they
    communicate more. Samples that follow each other in one group are packed together.

    `sizes="power-of-two"` keeps groups at multiples of their size (Megatron-Core's process groups; all ranks together
    count as one), so that the members of a group are always free together. `"free"` takes any number of neighbours, so
    a sample of 5 ranks' length does not take 8; where members are not free together, samples of one rank fill the gap.

    Raises:
        PadlessError: When all ranks together are too few for a sample, or some rank would have none.
    """
    refuse_oversize(samples, _slots(samples.lengths, spec.ranks, spec), spec, ranks=spec.ranks)
    if spec.sizes == "free" and spec.in_step:
        raise PadlessError(
            f"sizes='free' with pp={spec.pp}, microbatch_multiple={spec.microbatch_multiple}: groups of any size begin "
            "at different micro-batches on different ranks, and the stages of a pipeline would run out of step; use "
            "sizes='power-of-two'"
        )
    layout = _best_layout(samples, spec)
    bins = _bins(samples, layout, spec)
    if spec.in_step:
        bins = _in_step(bins, len(samples), spec)
        if bins is None:  # some ranks have too few samples of their own: all ranks for all samples
            layout = _layout(samples, "power-of-two", 1.0, spec.ranks, spec)
            bins = _in_step(_bins(samples, layout, spec), len(samples), spec)
    if bins is None:
        count = multiple_of(1, spec)
        raise PadlessError(
            f"{len(samples):,} samples cannot fill the {count} micro-batches that all ranks run in step; give at least "
            f"{count} samples a global batch, or empty='allow' and run padding there"
        )
    return Assignment.of(spec, samples, bins)


def _slots(lengths: np.ndarray, width: np.ndarray | int, spec: SchedulingSpec) -> np.ndarray:
    """int64[N]: slots of samples that `width` ranks share."""
    width = np.asarray(width)
    unit = np.lcm(spec.align, np.where(width > 1, 2 * width, 1))
    return -(-lengths // unit) * unit


def _sizes(kind: str, ranks: int) -> np.ndarray:
    """Ascending sizes that a group may have."""
    if kind == "free":
        return np.arange(1, ranks + 1)
    return np.unique([*(1 << n for n in range(ranks.bit_length()) if 1 << n <= ranks), ranks])


def _best_layout(samples: Samples, spec: SchedulingSpec) -> _Layout:
    """The first way that makes ranks even, else the one that ends soonest; no rank stays without a sample."""
    kinds = ["power-of-two"] if spec.sizes == "power-of-two" else ["free", "power-of-two"]
    narrow = [(kind, share, 1) for share, kind in itertools.product(SHARES, kinds)]
    wide = [("power-of-two", 1.0, int(least)) for least in _sizes("power-of-two", spec.ranks)[1:]]
    best, soonest = None, math.inf
    for kind, share, least in narrow + wide:
        layout = _layout(samples, kind, share, least, spec)
        if spec.pp == 1 and least == 1 and _is_even(layout, spec):
            return layout
        ends = _ends(layout, spec) if layout.done.min() else math.inf
        if best is None or ends < soonest:
            best, soonest = layout, ends
    assert best is not None
    return best


def _is_even(layout: _Layout, spec: SchedulingSpec) -> bool:
    works = int((layout.times * layout.width).sum())
    return bool(layout.done.min()) and int(layout.done.max()) * spec.ranks <= EVEN * works


def _ends(layout: _Layout, spec: SchedulingSpec) -> float:
    """When the last rank is done, and something on top for wide groups; plain arithmetic, equal on every machine."""
    works = layout.times * layout.width >> 10
    doublings = int((works * (np.frexp(layout.width)[1] - 1)).sum()) / max(int(works.sum()), 1)
    # A pipeline drains for as long as its longest sample takes in each of the other stages.
    drained = int(layout.done.max()) + (spec.pp - 1) * int(layout.times.max())
    return drained * (1 + WIDER * doublings)


def _layout(samples: Samples, kind: str, share: float, least: int, spec: SchedulingSpec) -> _Layout:
    """Widths, then places: widest first, and in one width the longest first.

    Args:
        samples: The samples.
        kind: Sizes that groups may have.
        share: Most of the mean rank's work that a sample is on one of its ranks.
        least: Fewest ranks of any group.
        spec: The cluster.
    """
    lengths, sizes = samples.lengths, _sizes(kind, spec.ranks)
    widest = int(_slots(lengths, spec.ranks, spec).max()) + 2 * spec.unit_of(spec.ranks)  # no width takes more slots
    alone = spec.works(_slots(lengths, 1, spec), largest=widest)
    mean = int(alone.sum()) / spec.ranks
    wanted = np.maximum(np.ceil(alone / (share * mean)).astype(np.int64), least)
    wanted = np.maximum(wanted, -(-lengths // spec.max_seqlen_per_rank))
    index = np.minimum(np.searchsorted(sizes, wanted), len(sizes) - 1)
    while (over := _slots(lengths, sizes[index], spec) > sizes[index] * spec.max_seqlen_per_rank).any():
        index = index + over  # a wider group may take more padding; all ranks together have been checked
    width = sizes[index]
    times = np.maximum(spec.works(_slots(lengths, width, spec), largest=widest) // width, 1)
    nothing = np.zeros(len(width), np.int64)
    layout = _Layout(width, nothing, nothing.copy(), times, np.zeros(spec.ranks, np.int64))
    for w in np.unique(width)[::-1].tolist():
        mine = np.flatnonzero(width == w)
        mine = mine[np.argsort(-times[mine], kind="stable")]
        if kind == "power-of-two":
            _aligned(layout, w, mine)
        elif w > 1:
            _anywhere(layout, w, mine)
        else:
            _level(layout, mine)
    return layout


def _aligned(layout: _Layout, w: int, mine: np.ndarray) -> None:
    """Samples of width w to groups at multiples of w. Wider groups came before, so all members of one are even."""
    groups = len(layout.done) // w
    heap = [(int(layout.done[g * w]), g) for g in range(groups)]
    heapq.heapify(heap)
    placed = []
    for time in layout.times[mine].tolist():
        load, g = heap[0]
        placed.append((load, g))
        heapq.heapreplace(heap, (load + time, g))
    for load, g in heap:
        layout.done[g * w : (g + 1) * w] = load
    starts, owners = np.array(placed, np.int64).T
    layout.start[mine], layout.first[mine] = starts, owners * w


def _anywhere(layout: _Layout, w: int, mine: np.ndarray) -> None:
    """Samples of width w to any w neighbours: those that are all free first, and of these the ones that wait least."""
    done = layout.done
    for i in mine.tolist():
        windows = np.lib.stride_tricks.sliding_window_view(done, w)
        free = windows.max(1)
        at = int(np.lexsort((-windows.sum(1), free))[0])
        layout.first[i], layout.start[i] = at, free[at]
        done[at : at + w] = free[at] + layout.times[i]


def _level(layout: _Layout, mine: np.ndarray) -> None:
    """Samples of one rank each, by work, and on each rank first into the time that it waits for a group."""
    wide = np.flatnonzero(layout.width > 1)
    wide = wide[np.argsort(layout.start[wide], kind="stable")]
    works = np.zeros(len(layout.done), np.int64)
    for i in wide.tolist():
        works[layout.first[i] : layout.first[i] + layout.width[i]] += layout.times[i]
    heap = [(load, rank) for rank, load in enumerate(works.tolist())]
    heapq.heapify(heap)
    own: list[list[int]] = [[] for _ in works]
    for i, time in zip(mine.tolist(), layout.times[mine].tolist(), strict=True):
        load, rank = heap[0]
        own[rank].append(i)
        heapq.heapreplace(heap, (load + time, rank))
    for rank, samples in enumerate(own):
        left, at = samples, 0
        for i in wide[(layout.first[wide] <= rank) & (rank < layout.first[wide] + layout.width[wide])].tolist():
            left, at = _fill(layout, rank, left, at, int(layout.start[i]))
            at = int(layout.start[i] + layout.times[i])
        _, layout.done[rank] = _fill(layout, rank, left, at, None)


def _fill(layout: _Layout, rank: int, left: list[int], at: int, end: int | None) -> tuple[list[int], int]:
    """Run samples on a rank from `at` to `end`, longest first; what does not fit is left."""
    if end is not None and (not left or at + layout.times[left[-1]] > end):
        return left, at  # not even the shortest
    later = []
    for i in left:
        time = int(layout.times[i])
        if end is not None and at + time > end:
            later.append(i)
            continue
        layout.first[i], layout.start[i] = rank, at
        at += time
    return later, at


def _groups(layout: _Layout) -> list[list[int]]:
    """Samples that follow each other on the same ranks with nothing in between, in an order that all ranks can keep."""
    last = [-1] * len(layout.done)
    groups: list[list[int]] = []
    order = np.lexsort((layout.first, layout.start))
    for i, w, at in zip(order.tolist(), layout.width[order].tolist(), layout.first[order].tolist(), strict=True):
        before = last[at]
        if before >= 0 and layout.width[groups[before][0]] == w and last[at : at + w] == [before] * w:
            groups[before].append(i)
        else:
            last[at : at + w] = [len(groups)] * w
            groups.append([i])
    return groups


def _bins(samples: Samples, layout: _Layout, spec: SchedulingSpec) -> list[Bin]:
    """Samples of one group, packed: as few bins as hold them, numbered so that all members of a group are in step."""
    number = np.zeros(spec.ranks, np.int64)
    bins: list[Bin] = []
    for group in _groups(layout):
        mine = np.array(group)
        w, start = int(layout.width[mine[0]]), int(layout.first[mine[0]])
        slots = _slots(samples.lengths[mine], w, spec)
        room = w * spec.max_seqlen_per_rank
        count = -(-int(slots.sum()) // room)
        if spec.most is not None:
            count = max(count, -(-len(mine) // spec.most))
        while (packed := into_bins(layout.times[mine], slots, count, room=room, most=spec.most)) is None:
            count += 1
        packed = [members for members in packed if members]
        begin = int(number[start : start + w].max())
        bins += [Bin(begin + n, start, w, mine[members].tolist()) for n, members in enumerate(packed)]
        number[start : start + w] = begin + len(packed)
    return bins


def _in_step(bins: list[Bin], samples: int, spec: SchedulingSpec) -> list[Bin] | None:
    """Every rank as many micro-batches as the one that has most, by splitting bins; None where samples are too few.

    Bins of single ranks are split; those of all ranks, where there are no others.
    """
    counts = np.zeros(spec.ranks, np.int64)
    for b in bins:
        counts[b.first : b.first + b.width] += 1
    count = multiple_of(int(counts.max()), spec)
    count = max([count, *for_stages(count, samples, spec)])
    width = spec.ranks if all(b.width == spec.ranks for b in bins) else 1
    made = [b for b in bins if b.width != width]
    for first in range(0, spec.ranks, width):
        own = [list(b.members) for b in bins if b.width == width and b.first == first]
        begin = int(counts[first]) - len(own)
        own = _split(own, count - begin)
        if len(own) < count - begin and spec.empty == "error":
            return None
        made += [Bin(begin + n, first, width, members) for n, members in enumerate(own)]
    return made


def _split(lists: list[list[int]], count: int) -> list[list[int]]:
    """Up to `count` lists: the longest gives its last sample away, again and again."""
    while len(lists) < count:
        longest = max(lists, key=len, default=[])
        if len(longest) < 2:
            break
        lists.append([longest.pop()])
    return lists
