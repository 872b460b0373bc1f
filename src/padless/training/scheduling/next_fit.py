"""`megatron`: what Megatron-Core's `dp_balanced` does, for runs that must not change."""

import numpy as np

from padless.errors import PadlessError
from padless.training.scheduling.assignment import Assignment, Bin, Samples
from padless.training.scheduling.limits import refuse_oversize
from padless.training.scheduling.spec import SchedulingSpec


def next_fit(samples: Samples, spec: SchedulingSpec) -> Assignment:
    """Samples in their order, a new bin as soon as one does not fit; an equal *number* of bins for every rank.

    The result of `DpBalancedScheduler` (Megatron-Core, dev branch of August 2026): when the bins are no multiple of
    `dp * microbatch_multiple`, the last bin that holds several samples gives its last one to a new bin, again and
    again. Bin `i * dp + j` is micro-batch i of rank j. Neither tokens nor work are balanced. Two things differ: a
    sample that fits no bin is refused (there it gets a bin above the limit, behind an empty one where it comes
    first), and so is a batch with too few samples (there an assertion fails).

    Raises:
        PadlessError: As above.
    """
    slots = spec.padded(samples.lengths)
    refuse_oversize(samples, slots, spec)
    bins = next_fit_bins(slots, spec)
    if bins is None:
        wanted = -(-len(_next_fit(slots, spec)) // (spec.dp * spec.microbatch_multiple))
        wanted *= spec.dp * spec.microbatch_multiple
        raise PadlessError(
            f"{len(samples):,} samples cannot fill {wanted:,} bins ({spec.dp} data-parallel ranks, a multiple of "
            f"{spec.microbatch_multiple} micro-batches each); give at least {wanted:,} samples a global batch"
        )
    return Assignment.of(spec, samples, bins)


def next_fit_bins(slots: np.ndarray, spec: SchedulingSpec) -> list[Bin] | None:
    """The bins, or None when samples are too few to make their number a multiple."""
    found = _next_fit(slots, spec)
    multiple = spec.dp * spec.microbatch_multiple
    wanted = -(-len(found) // multiple) * multiple
    if wanted > len(slots):
        return None
    last = len(found) - 1
    while len(found) < wanted:
        if len(found[last]) > 1:
            found.append([found[last].pop()])
        else:
            last -= 1
    return [Bin(n // spec.dp, n % spec.dp * spec.cp, spec.cp, members) for n, members in enumerate(found)]


def _next_fit(slots: np.ndarray, spec: SchedulingSpec) -> list[list[int]]:
    bins: list[list[int]] = [[]]
    used = 0
    for i, size in enumerate(slots.tolist()):
        if used + size > spec.capacity or (spec.most is not None and len(bins[-1]) >= spec.most):
            bins.append([])
            used = 0
        bins[-1].append(i)
        used += size
    return bins
