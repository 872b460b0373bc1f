"""What a row costs, and how the rows of one step are dealt so that no rank waits for another.

Rows of a good plan hold nearly the same number of tokens, yet attention costs the sum of squared segment lengths, and
that differs by a factor of ten and more between a row of one long sample and a row of many short ones. All ranks wait
for the slowest, so what matters is max / mean over the ranks of one step.
"""

import dataclasses

import numpy as np

from padless.errors import PadlessError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a row: `linear * tokens + quadratic * sum(length ** 2)` over its segments, in any unit.

    Args:
        linear: Cost of one token outside attention (projections, MLP), e.g. its FLOPs.
        quadratic: Cost of one (query, key) pair of a segment.

    Raises:
        PadlessError: When a coefficient is negative or both are zero.

    Example:
        >>> Cost(linear=24576, quadratic=1).of(lengths=[4096])
        117440512.0
    """

    linear: float = 0.0
    quadratic: float = 0.0

    def __post_init__(self) -> None:
        if self.linear < 0 or self.quadratic < 0 or self.linear + self.quadratic == 0:
            raise PadlessError(
                f"a cost of linear={self.linear}, quadratic={self.quadratic} cannot rank rows: expected "
                "coefficients >= 0, at least one above 0, e.g. Cost(linear=24576, quadratic=1)"
            )

    def of(self, lengths: np.ndarray | list[int]) -> float:
        """The cost of one row with segments of these lengths."""
        sizes = np.asarray(lengths, dtype=np.float64)
        return float(self.linear * sizes.sum() + self.quadratic * np.square(sizes).sum())


TOKENS = Cost(linear=1.0)


def row_costs(row_offsets: np.ndarray, lengths: np.ndarray, cost: Cost) -> np.ndarray:
    """The cost of every row of a plan.

    Args:
        row_offsets: `int64[R + 1]`; the segments of row r are `row_offsets[r] : row_offsets[r + 1]`.
        lengths: `int[S]`, real tokens of each segment.
        cost: The cost of a row.

    Returns:
        `float64[R]`.

    Example:
        >>> row_costs(np.array([0, 2, 3]), np.array([3, 1, 4]), Cost(quadratic=1))
        array([10., 16.])
    """
    row_of_segment = np.repeat(np.arange(len(row_offsets) - 1), np.diff(row_offsets))
    sizes = lengths.astype(np.float64)
    segment_costs = cost.linear * sizes + cost.quadratic * sizes * sizes
    return np.bincount(row_of_segment, weights=segment_costs, minlength=len(row_offsets) - 1)


def deal(costs: np.ndarray, ranks: int) -> list[np.ndarray]:
    """Deal the rows of one step to ranks: equal counts (they differ by one at most), near-equal cost.

    Rows go out in tiers of `ranks` rows, dearest first; within a tier the dearest row goes to the rank that has least
    so far (longest-processing-time scheduling, Graham 1969, with the count of rows held equal because a row is also
    memory).

    Args:
        costs: `float64[n]`, one per row.
        ranks: How many shares to make, at most n.

    Returns:
        `ranks` arrays of positions in `costs`, each ascending.

    Example:
        >>> [share.tolist() for share in deal(np.array([9.0, 1.0, 8.0, 2.0]), 2)]
        [[0, 1], [2, 3]]
    """
    dearest_first = np.argsort(-costs, kind="stable")
    loads = np.zeros(ranks)
    owner = np.empty(len(costs), dtype=np.int64)
    for start in range(0, len(costs), ranks):
        tier = dearest_first[start : start + ranks]
        least_loaded = np.argsort(loads, kind="stable")[: len(tier)]
        owner[tier] = least_loaded
        loads[least_loaded] += costs[tier]
    return [np.flatnonzero(owner == rank) for rank in range(ranks)]


def imbalance(loads: np.ndarray) -> float:
    """How much longer the slowest rank works than the mean rank: max / mean of `loads`; 1.0 is perfect.

    Example:
        >>> imbalance(np.array([4.0, 2.0, 3.0]))
        1.3333333333333333
    """
    return float(loads.max() / loads.mean())


def group_similar(order: np.ndarray, costs: np.ndarray, *, window: int, similar: int, keys: np.ndarray) -> np.ndarray:
    """Reorder rows so that each run of `similar` rows costs nearly the same; no row moves `window` places or more.

    The order is cut into blocks of `window` rows. Each block is sorted by cost and cut into runs of `similar` rows; the
    runs are then put in random order again. What stays random: which rows share a block, and when a run comes. What
    does not: rows of one run resemble each other, so a step made of a single run sees samples of similar length.

    Args:
        order: `int64[n]`, rows in random order.
        costs: `float64[R]`, indexed by row.
        window: Block length in rows, a multiple of `similar`.
        similar: Rows per run, normally the number of ranks.
        keys: `uint64[n]` of random bits that decide the order of runs.

    Returns:
        `int64[n]`, the same rows in another order.

    Example:
        >>> costs = np.array([9.0, 1.0, 8.0, 2.0])
        >>> group_similar(np.array([0, 1, 2, 3]), costs, window=4, similar=2, keys=np.arange(4)).tolist()
        [1, 3, 2, 0]
    """
    blocks = []
    for start in range(0, len(order), window):
        block = order[start : start + window]
        block = block[np.argsort(costs[block], kind="stable")]
        whole = len(block) - len(block) % similar
        runs = block[:whole].reshape(-1, similar)
        shuffled = runs[np.argsort(keys[start : start + len(runs)], kind="stable")]
        blocks += [shuffled.reshape(-1), block[whole:]]  # what fills no run is the dearest of the last block
    return np.concatenate(blocks) if blocks else order
