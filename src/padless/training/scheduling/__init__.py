"""Who gets which sample of a global batch: pure functions of lengths, the same on every rank.

`training.schedule` orders the rows of an epoch; this shares the samples of one step out over the ranks of a cluster.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from padless.errors import PadlessError
from padless.training.balance import Cost
from padless.training.scheduling.assignment import Assignment, Bin, Samples, Share, check_assignment
from padless.training.scheduling.dp_balanced import dp_balanced
from padless.training.scheduling.dynamic_cp import dynamic_cp
from padless.training.scheduling.next_fit import next_fit
from padless.training.scheduling.spec import SchedulingSpec
from padless.training.scheduling.wlb import wlb

__all__ = [
    "SCHEDULERS",
    "Assignment",
    "Bin",
    "Cost",
    "Samples",
    "Scheduler",
    "SchedulingSpec",
    "Share",
    "check_assignment",
    "schedule",
]


@dataclass(frozen=True)
class Scheduler:
    """One way to share samples out.

    Attributes:
        make: `(Samples, SchedulingSpec) -> Assignment`.
        summary: What it does, in one line.
    """

    make: Callable[[Samples, SchedulingSpec], Assignment]
    summary: str


SCHEDULERS = {
    "dp-balanced": Scheduler(dp_balanced, "equal work for every data-parallel rank"),
    "megatron": Scheduler(next_fit, "an equal number of bins, in order: dp_balanced of Megatron-Core"),
    "dynamic-cp": Scheduler(dynamic_cp, "long samples over more ranks, short ones on one"),
    "wlb": Scheduler(wlb, "equal work in every micro-batch; the longest may wait (WLB-LLM)"),
}


def schedule(
    lengths: Any,
    spec: SchedulingSpec,
    *,
    strategy: str = "dp-balanced",
    ids: Any = None,
    waiting: Samples | None = None,
) -> Assignment:
    """Share the samples of one global batch out over ranks.

    A pure function: every rank that knows the lengths computes the same, and no more is exchanged than they.

    Args:
        lengths: int[N], real tokens of each sample of the global batch, in the same order on every rank.
        spec: The cluster and its limits.
        strategy: A name of `SCHEDULERS`.
        ids: int[N], a name for each sample; its place in `lengths` unless given. With `wlb` they must go on from one
            global batch to the next.
        waiting: `waiting` of the assignment before.

    Returns:
        Who gets what. `assignment.of_rank(r)` is what rank r runs.

    Raises:
        PadlessError: For what cannot be scheduled: a sample too long for everything, too few samples for the ranks.

    Example:
        >>> spec = SchedulingSpec(dp=2, max_seqlen_per_rank=16, cost=Cost(linear=8, quadratic=1))
        >>> made = schedule([7, 2, 4, 9, 3, 4, 3], spec)
        >>> [[(s.microbatch, s.ids.tolist()) for s in made.of_rank(rank)] for rank in (0, 1)]
        [[(0, [3]), (1, [5, 1])], [(0, [2, 4, 6]), (1, [0])]]
        >>> theirs = schedule([7, 2, 4, 9, 3, 4, 3], spec, strategy="megatron")
        >>> round(made.imbalance, 3), round(theirs.imbalance, 3)
        (1.005, 1.064)
    """
    if strategy not in SCHEDULERS:
        raise PadlessError(f"no scheduler is called {strategy!r}; there are {', '.join(SCHEDULERS)}")
    before = Samples.none() if waiting is None else waiting
    new = Samples.of(lengths, ids) if len(lengths) or not len(before) else Samples.none()
    return SCHEDULERS[strategy].make(before.plus(new), spec)
