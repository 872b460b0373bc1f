"""When the last rank is done, in whole units of work: what schedulers of fixed groups compare their candidates by."""

from collections.abc import Callable, Iterable

import numpy as np

from padless.training.scheduling.assignment import Bin
from padless.training.scheduling.limits import too_few
from padless.training.scheduling.spec import SchedulingSpec

Ends = Callable[[list[Bin], np.ndarray, SchedulingSpec], int]


def soonest(candidates: Iterable[list[Bin] | None], ends: Ends, works: np.ndarray, spec: SchedulingSpec) -> list[Bin]:
    """The candidate that ends first, the earlier one of equals.

    Raises:
        PadlessError: When there is none: each would have left some rank without a sample.
    """
    found = [bins for bins in candidates if bins is not None]
    if not found:
        raise too_few(len(works), spec)
    return min(found, key=lambda bins: ends(bins, works, spec))


def apart(bins: list[Bin], works: np.ndarray, spec: SchedulingSpec) -> int:
    """When ranks meet once a step: the longest pipeline's sum of micro-batches and `pp - 1` times its longest.

    Example:
        >>> from padless.training.balance import Cost
        >>> spec = SchedulingSpec(dp=2, pp=3, max_seqlen_per_rank=9, cost=Cost(linear=1))
        >>> bins = [Bin(0, 0, 1, [0, 1]), Bin(1, 0, 1, [2]), Bin(0, 1, 1, [3])]
        >>> apart(bins, np.array([3, 2, 4, 1]), spec), in_lockstep(bins, np.array([3, 2, 4, 1]), spec)
        (19, 19)
    """
    loads = _loads(bins, works, spec)
    return int((loads.sum(0) + (spec.pp - 1) * loads.max(0)).max())


def in_lockstep(bins: list[Bin], works: np.ndarray, spec: SchedulingSpec) -> int:
    """When ranks meet after every micro-batch (sharded weights, experts): the longest of each, and of the pipeline."""
    longest = _loads(bins, works, spec).max(1)
    return int(longest.sum() + (spec.pp - 1) * longest.max())


def _loads(bins: list[Bin], works: np.ndarray, spec: SchedulingSpec) -> np.ndarray:
    """int64[micro-batches, dp]."""
    loads = np.zeros((max(b.microbatch for b in bins) + 1, spec.dp), np.int64)
    for b in bins:
        loads[b.microbatch, b.first // spec.cp] += works[b.members].sum()
    return loads
