"""How evenly the rows of each step load data-parallel ranks, dealt in order and dealt by cost."""

from dataclasses import dataclass

import numpy as np

from padless.planning import Plan
from padless.training import Cost
from padless.training.balance import TOKENS, deal, imbalance, row_costs
from padless.training.epochs import EpochSpec, EpochSteps, make_epoch_steps

__all__ = ["RANKS", "USUAL_COST", "Balance", "Dealt", "balance"]

RANKS = 8
ROWS_PER_RANK = 4
USUAL_COST = Cost(linear=24576, quadratic=1)
"""Projections against attention in a model of about 7 billion parameters (hidden size 4,096)."""


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """One way of giving the rows of every step of an epoch to ranks.

    Attributes:
        name: The way.
        mean: Mean over steps of the slowest rank's cost / the mean rank's; 1.0 is perfect.
        worst: The largest of them.
        loads: float64[ranks] of the worst step, in units of its mean.
    """

    name: str
    mean: float
    worst: float
    loads: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Balance:
    """Ways of dealing compared on the same rows.

    Attributes:
        ranks: Data-parallel ranks.
        rows_per_rank: Rows of a step for each of them.
        steps: Steps of an epoch.
        left_out: Rows that fill no step.
        cost: What a row costs.
        ways: In order, by cost, and by cost with rows of similar cost in one step.
    """

    ranks: int
    rows_per_rank: int
    steps: int
    left_out: int
    cost: Cost
    ways: tuple[Dealt, ...]


def balance(plan: Plan, *, cost: Cost = USUAL_COST, ranks: int = RANKS) -> Balance | None:
    """Deal an epoch's rows as `padless.training.RowSampler` does; None when there are fewer rows than ranks.

    Example:
        >>> from padless import plan
        >>> found = balance(plan([9, 1, 1, 1, 4, 4, 5, 5], capacity=10), ranks=2)
        >>> found.steps, found.ways[0].name
        (1, 'in order')
    """
    if plan.num_rows < ranks:
        return None
    per_rank = min(ROWS_PER_RANK, plan.num_rows // ranks)
    rows = ranks * per_rank
    costs = row_costs(plan.row_offsets, plan.lengths, cost)
    tokens = row_costs(plan.row_offsets, plan.lengths, TOKENS).astype(np.int64)

    def epoch_steps(dealt_by: Cost | None, window: int | None = None) -> EpochSteps:
        spec = EpochSpec(
            rows=rows, drop_last=True, cost=dealt_by, window=window, similar=None if window is None else rows
        )
        return make_epoch_steps(spec, epoch=0, ranks=ranks, row_tokens=tokens, costs=costs if dealt_by else None)

    in_order = epoch_steps(None)
    return Balance(
        ranks=ranks,
        rows_per_rank=per_rank,
        steps=in_order.num_steps,
        left_out=len(in_order.dropped),
        cost=cost,
        ways=(
            _dealt("in order", in_order, costs, ranks),
            _dealt("by cost", epoch_steps(cost), costs, ranks),
            _dealt("by cost, similar rows together", epoch_steps(cost, window=16 * rows), costs, ranks),
        ),
    )


def _dealt(name: str, epoch_steps: EpochSteps, costs: np.ndarray, ranks: int) -> Dealt:
    loads = []
    for index in range(epoch_steps.num_steps):
        step = costs[epoch_steps.step(index)]
        shares = [np.arange(rank, len(step), ranks) for rank in range(ranks)]
        if epoch_steps.costs is not None:
            shares = deal(step, ranks)
        loads.append(np.array([step[share].sum() for share in shares]))
    slowest = np.array([imbalance(load) for load in loads])
    worst = loads[int(slowest.argmax())]
    return Dealt(name=name, mean=float(slowest.mean()), worst=float(slowest.max()), loads=worst / worst.mean())
