"""`wlb`: micro-batches of equal work, the longest samples waiting until there is one for each (after WLB-LLM)."""

import numpy as np

from padless.training.balance import deal
from padless.training.scheduling.assignment import Assignment, Bin, Samples
from padless.training.scheduling.dp_balanced import by_work
from padless.training.scheduling.ends import in_lockstep, soonest
from padless.training.scheduling.fill import into_bins, refine
from padless.training.scheduling.limits import enough, for_stages, multiple_of, refuse_oversize
from padless.training.scheduling.next_fit import next_fit_bins
from padless.training.scheduling.spec import SchedulingSpec


def wlb(samples: Samples, spec: SchedulingSpec) -> Assignment:
    """Share samples out so that all micro-batches of all ranks do equal work, for ranks that meet after each of them.

    After WLB-LLM (arXiv 2503.17924, section 4): a sample that alone outweighs a micro-batch waits in a queue until
    there is one for every micro-batch; the rest go dearest first to the micro-batch with least work. Here nothing waits
    longer than `max_delay` global batches: when one is due, its whole queue goes with it, so that one step is long
    and not several. A micro-batch may take `max_seqlen_per_rank`, which is memory, not the longest sample: short
    samples need more slots for the same work. Ranks of equal work and Megatron's next-fit are compared with that, and
    what ends soonest is taken.

    Raises:
        PadlessError: When a sample fits no micro-batch, or there are too few samples (`empty="error"`).
    """
    slots = spec.padded(samples.lengths)
    refuse_oversize(samples, slots, spec)
    works = spec.works(slots)
    now = _released(samples, works, slots, spec)
    placed = np.flatnonzero(now)
    works, slots = works[placed], slots[placed]
    needed = _microbatches(slots, spec)
    equal = [_equal(works, slots, count, spec) for count in (needed, *for_stages(needed, len(slots), spec))]
    candidates = [*equal, *by_work(works, slots, spec), next_fit_bins(slots, spec)]
    bins = soonest(candidates, in_lockstep, works, spec)
    held = samples.take(np.flatnonzero(~now)).older()
    return Assignment.of(spec, samples.take(placed), bins, held)


def _microbatches(slots: np.ndarray, spec: SchedulingSpec) -> int:
    """How many each rank needs at least for all slots and samples together."""
    count = max(-(-int(slots.sum()) // (spec.capacity * spec.dp)), 1)
    if spec.most is not None:
        count = max(count, -(-len(slots) // (spec.most * spec.dp)))
    return multiple_of(count, spec)


def _equal(works: np.ndarray, slots: np.ndarray, count: int, spec: SchedulingSpec) -> list[Bin] | None:
    """Bins of equal work, at least `count` for each rank, dealt so that ranks and micro-batches are even."""
    bins = None
    while bins is None:
        if not enough(len(works), count, spec):
            return None
        bins = into_bins(works, slots, count * spec.dp, room=spec.capacity, most=spec.most)
        count += spec.microbatch_multiple
    bins = _closer(bins, works, slots, spec)
    costs = np.array([works[members].sum() for members in bins], dtype=np.float64)
    return [
        Bin(number, rank * spec.cp, spec.cp, bins[b])
        for rank, share in enumerate(deal(costs, spec.dp))
        for number, b in enumerate(share)
        if bins[b]
    ]


def _closer(bins: list[list[int]], works: np.ndarray, slots: np.ndarray, spec: SchedulingSpec) -> list[list[int]]:
    """The same bins after swaps, in descending order of work."""
    owner = np.empty(len(works), np.int64)
    for b, members in enumerate(bins):
        owner[members] = b
    if spec.most is None:  # a move may fill a bin beyond its number of samples
        owner = refine(owner, works, len(bins), slots, spec.capacity)
    loads = np.zeros(len(bins), np.int64)
    np.add.at(loads, owner, works)
    by_bin = np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner, minlength=len(bins)))[:-1])
    return [by_bin[b].tolist() for b in np.argsort(-loads, kind="stable")]


def _released(samples: Samples, works: np.ndarray, slots: np.ndarray, spec: SchedulingSpec) -> np.ndarray:
    """bool[N]: who goes now. A queue goes when it has one for every micro-batch, or when somebody in it is due."""
    now = np.ones(len(samples), dtype=bool)
    if spec.max_delay == 0:
        return now
    bins = _step(slots, spec)
    for queue in _queues(samples, works, bins, spec):
        if len(queue) == 0:
            continue
        oldest_first = queue[np.lexsort((samples.ids[queue], -samples.ages[queue]))]
        whole = len(queue) // bins * bins
        due = bool(samples.ages[oldest_first[0]] >= spec.max_delay)
        now[oldest_first[len(queue) if due else whole :]] = False
    fewest = _step(slots[now], spec) if now.any() else 1
    return now if int(now.sum()) >= fewest else np.ones(len(samples), dtype=bool)


def _step(slots: np.ndarray, spec: SchedulingSpec) -> int:
    """Micro-batches of a step over all ranks."""
    needed = _microbatches(slots, spec)
    return max([needed, *for_stages(needed, len(slots), spec)]) * spec.dp


def _queues(samples: Samples, works: np.ndarray, bins: int, spec: SchedulingSpec) -> list[np.ndarray]:
    """Places of the samples that may wait, one array for each queue."""
    if spec.outliers is not None:
        level = np.searchsorted(spec.outliers, samples.lengths, side="right")
        return [np.flatnonzero(level == number) for number in range(1, len(spec.outliers) + 1)]
    # What alone costs more than the mean micro-batch of all others outlasts them however they are shared out.
    alone = np.zeros(len(samples), dtype=bool)
    while True:
        mean = int(works[~alone].sum()) / bins
        more = works > mean
        if more.sum() == alone.sum() or more.all():
            return [np.flatnonzero(alone)]
        alone = more
