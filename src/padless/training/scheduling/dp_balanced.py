"""`dp-balanced`: every data-parallel rank the same work, then every micro-batch of a rank."""

import numpy as np

from padless.training.scheduling.assignment import Assignment, Bin, Samples
from padless.training.scheduling.fill import into_bins, least_work_first, refine
from padless.training.scheduling.limits import fewest_microbatches, refuse_oversize, refuse_too_few
from padless.training.scheduling.spec import SchedulingSpec


def dp_balanced(samples: Samples, spec: SchedulingSpec) -> Assignment:
    """Share samples out so that ranks do equal work, each in the same number of micro-batches.

    Work decides which rank gets a sample: dearest first to the rank with least, then swaps between the dearest and the
    cheapest rank. Room decides how many micro-batches all ranks need; a rank's samples are spread over them by work,
    dearest micro-batch first on every rank. Where a rank has fewer samples than micro-batches it takes the shortest
    ones of the rank that has most.

    Raises:
        PadlessError: When a sample fits no micro-batch, or there are too few samples (`empty="error"`).
    """
    slots = spec.padded(samples.lengths)
    refuse_oversize(samples, slots, spec)
    works = spec.works(slots)
    owner = refine(least_work_first(works, spec.dp), works, spec.dp)
    count = fewest_microbatches(owner, slots, spec)
    while True:
        refuse_too_few(len(samples), count, spec)
        shared = _everyone_has(owner, works, spec.dp, count)
        found = [_rank(np.flatnonzero(shared == rank), works, slots, count, spec) for rank in range(spec.dp)]
        if all(bins is not None for bins in found):
            break
        count += spec.microbatch_multiple  # ends at the latest when every sample has its own
    return Assignment.of(
        spec,
        samples,
        [
            Bin(number, rank * spec.cp, spec.cp, members)
            for rank, bins in enumerate(found)
            for number, members in enumerate(bins or [])
            if members
        ],
    )


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
