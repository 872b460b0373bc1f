"""`dp-balanced`: every data-parallel rank the same work, then every micro-batch of a rank."""

import numpy as np

from padless.training.scheduling.assignment import Assignment, Bin, Samples
from padless.training.scheduling.ends import apart, soonest
from padless.training.scheduling.fill import into_bins, least_work_first, refine
from padless.training.scheduling.limits import enough, fewest_microbatches, for_stages, refuse_oversize
from padless.training.scheduling.next_fit import next_fit_bins
from padless.training.scheduling.spec import SchedulingSpec


def dp_balanced(samples: Samples, spec: SchedulingSpec) -> Assignment:
    """Share samples out so that ranks do equal work, each in the same number of micro-batches.

    Work decides which rank gets a sample: dearest first to the rank with least, then swaps between the dearest and the
    cheapest rank. Room decides how many micro-batches all ranks need; a rank's samples are spread over them by work,
    dearest micro-batch first on every rank. Where a rank has fewer samples than micro-batches it takes the cheapest
    ones of the rank that has most. With pipeline stages, as many micro-batches as stages are tried too. What ends
    soonest is taken, and so is Megatron's next-fit where small batches leave nothing better.

    Raises:
        PadlessError: When a sample fits no micro-batch, or there are too few samples (`empty="error"`).
    """
    slots = spec.padded(samples.lengths)
    refuse_oversize(samples, slots, spec)
    works = spec.works(slots)
    candidates = [*by_work(works, slots, spec), next_fit_bins(slots, spec)]
    return Assignment.of(spec, samples, soonest(candidates, apart, works, spec))


def by_work(works: np.ndarray, slots: np.ndarray, spec: SchedulingSpec) -> list[list[Bin] | None]:
    """Bins of equal work for every rank, for each number of micro-batches worth trying; None for too few samples."""
    owner = refine(least_work_first(works, spec.dp), works, spec.dp)
    needed = fewest_microbatches(owner, slots, spec)
    counts = [needed, *for_stages(needed, len(works), spec)]
    return [_spread(owner, works, slots, count, spec) for count in counts]


def _spread(
    owner: np.ndarray, works: np.ndarray, slots: np.ndarray, count: int, spec: SchedulingSpec
) -> list[Bin] | None:
    """Each rank's samples over at least `count` micro-batches."""
    while enough(len(works), count, spec):
        shared = _everyone_has(owner, works, spec.dp, count)
        found = []
        for rank in range(spec.dp):
            bins = _rank(np.flatnonzero(shared == rank), works, slots, count, spec)
            if bins is None:
                break
            found += [Bin(n, rank * spec.cp, spec.cp, members) for n, members in enumerate(bins) if members]
        else:
            return found
        count += spec.microbatch_multiple  # ends at the latest when every sample has its own
    return None


def _rank(
    mine: np.ndarray, works: np.ndarray, slots: np.ndarray, count: int, spec: SchedulingSpec
) -> list[list[int]] | None:
    """One rank's samples in `count` micro-batches, by work, or by slots where work leaves no room."""
    for weights in (works[mine], slots[mine]):
        bins = into_bins(weights, slots[mine], count, room=spec.capacity, most=spec.most)
        if bins is not None:
            bins.sort(key=lambda members: -int(works[mine][members].sum()))
            return [mine[members].tolist() for members in bins]
    return None


def _everyone_has(owner: np.ndarray, works: np.ndarray, ranks: int, count: int) -> np.ndarray:
    """Owners such that every rank has at least `count` samples, as far as there are enough; the cheapest ones move."""
    numbers = np.bincount(owner, minlength=ranks)
    if numbers.min() >= count:
        return owner
    owner = owner.copy()
    for poor in np.flatnonzero(numbers < count):
        while numbers[poor] < count and numbers.max() > count:
            rich = int(numbers.argmax())
            theirs = np.flatnonzero(owner == rich)
            owner[theirs[works[theirs].argmin()]] = poor
            numbers[[rich, poor]] += [-1, 1]
    return owner
