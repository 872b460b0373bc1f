"""Which rows form which step of an epoch: a pure function of (rows, spec, epoch), the same on every rank."""

import dataclasses

import numpy as np

from padless.errors import PadlessError
from padless.training.balance import Cost, group_similar

SEEDS = 1 << 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochSpec:
    """All that decides the order of rows. Two equal specs over the same plan give the same steps for ever.

    Args:
        rows: Rows per step over all ranks; give this or `tokens`.
        tokens: Most real tokens per step over all ranks.
        drop_last: Whether rows that do not fill the last step are left out of the epoch (and counted).
        seed: Decides the order; epoch e of seed s is another order than any other pair.
        shuffle: False keeps the plan's order.
        cost: The cost by which rows are dealt to ranks; None deals them in order.
        window: With a cost: bring rows of similar cost together within blocks of this many rows.
        similar: With a window: how many rows of similar cost come together, normally the number of ranks.
        replan: A new plan every epoch, from the plan's own spec with its seed moved by the epoch.

    Raises:
        PadlessError: When the parts contradict each other.
    """

    rows: int | None = None
    tokens: int | None = None
    drop_last: bool
    seed: int = 0
    shuffle: bool = True
    cost: Cost | None = None
    window: int | None = None
    similar: int | None = None
    replan: bool = False

    def __post_init__(self) -> None:
        if (self.rows is None) == (self.tokens is None):
            raise PadlessError(
                f"a step is measured in rows or in tokens, given rows={self.rows}, tokens={self.tokens}: "
                "expected exactly one of them"
            )
        for name in ("rows", "tokens", "window", "similar"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise PadlessError(f"{name}={value}: expected at least 1")
        if not 0 <= self.seed < SEEDS:  # a longer one would run into the epoch's word of the random stream
            raise PadlessError(f"seed={self.seed}: expected 0 <= seed < 2**32")
        if self.window is not None:
            self._check_window()

    def _check_window(self) -> None:
        if self.cost is None or self.similar is None or not self.shuffle:
            raise PadlessError(
                f"window={self.window} brings rows of similar cost together, so it needs cost=, similar= and "
                "shuffle=True; without them leave window out"
            )
        if self.window is not None and self.window % self.similar:
            raise PadlessError(
                f"window={self.window} is no multiple of similar={self.similar}: a block would end inside a run of "
                f"similar rows; e.g. window={self.similar * max(self.window // self.similar, 1)}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochSteps:
    """The steps of one epoch: step k takes rows `order[step_offsets[k] : step_offsets[k + 1]]`.

    Attributes:
        order: `int64[R]`, every row of the plan once.
        step_offsets: `int64[steps + 1]`.
        costs: `float64[R]` indexed by row, or None when rows are dealt in order.
    """

    order: np.ndarray
    step_offsets: np.ndarray
    costs: np.ndarray | None

    @property
    def num_steps(self) -> int:
        """Steps of the epoch, the same for every rank."""
        return len(self.step_offsets) - 1

    @property
    def dropped(self) -> np.ndarray:
        """`int64[D]`: the rows that this epoch leaves out."""
        return self.order[self.step_offsets[-1] :]

    def step(self, index: int) -> np.ndarray:
        """`int64[n]`: the rows of one step over all ranks."""
        return self.order[self.step_offsets[index] : self.step_offsets[index + 1]]


def random_keys(count: int, *stream: int) -> np.ndarray:
    """`uint64[count]` of random bits for one stream of integers.

    Raw PCG64 output: numpy promises it for ever, unlike `Generator.permutation`, whose result may change between
    releases; a run resumed years later must see the same order.
    """
    return np.random.PCG64(list(stream)).random_raw(count)


def make_epoch_steps(
    spec: EpochSpec, *, epoch: int, ranks: int, row_tokens: np.ndarray, costs: np.ndarray | None
) -> EpochSteps:
    """Order the rows of one epoch and cut them into steps.

    `ranks` decides no more than how the last steps are cut when `drop_last` is False, which is why a run can go on with
    another number of ranks.

    Args:
        spec: What decides the order.
        epoch: Number of the epoch, from 0.
        ranks: Data-parallel ranks; every step holds at least one row for each.
        row_tokens: `int64[R]`, real tokens of each row.
        costs: `float64[R]` under `spec.cost`; None when the spec has none.

    Raises:
        PadlessError: When some step would leave a rank without a row.
    """
    count = len(row_tokens)
    order = np.arange(count)
    if spec.shuffle:
        order = np.argsort(random_keys(count, spec.seed, epoch), kind="stable")
    if spec.window is not None:
        assert costs is not None
        assert spec.similar is not None
        keys = random_keys(count, spec.seed, epoch, 1)
        order = group_similar(order, costs, window=spec.window, similar=spec.similar, keys=keys)
    if spec.rows is not None:
        cuts = np.arange(0, count + 1, spec.rows)
    else:
        assert spec.tokens is not None
        cuts = cut_by_tokens(row_tokens[order], spec.tokens, ranks)
    offsets = close_epoch(cuts, count, ranks=ranks, drop_last=spec.drop_last)
    return EpochSteps(order=order, step_offsets=offsets, costs=costs)


def cut_by_tokens(row_tokens: np.ndarray, budget: int, ranks: int) -> np.ndarray:
    """Cut rows into steps of at most `budget` tokens, each as long as possible; what the last budget lacks is the rest.

    Args:
        row_tokens: `int64[R]`, in the order of the epoch.
        budget: Most tokens of a step.
        ranks: Fewest rows of a step.

    Returns:
        `int64[steps + 1]` starting at 0, full steps only.

    Raises:
        PadlessError: When `ranks` consecutive rows exceed the budget.

    Example:
        >>> cut_by_tokens(np.array([4, 4, 3, 5, 1]), 8, 1).tolist()
        [0, 2, 4]
    """
    ends = np.concatenate([[0], np.cumsum(row_tokens)])
    cuts = [0]
    while True:
        start = cuts[-1]
        stop = int(np.searchsorted(ends, ends[start] + budget, side="right")) - 1
        if stop == len(row_tokens):  # everything left fits: a full step only when it meets the budget exactly
            full = stop - start >= ranks and ends[stop] - ends[start] == budget
            return np.array([*cuts, stop] if full else cuts)
        if stop - start < ranks:
            tokens = int(ends[min(start + ranks, len(row_tokens))] - ends[start])
            raise PadlessError(
                f"a step of at most {budget:,} tokens cannot give each of {ranks} ranks a row: {ranks} rows at place "
                f"{start:,} of the epoch hold {tokens:,} tokens; raise tokens= or lower ranks="
            )
        cuts.append(stop)


def close_epoch(cuts: np.ndarray, count: int, *, ranks: int, drop_last: bool) -> np.ndarray:
    """Decide what becomes of the rows after the last full step.

    Dropped, or a shorter last step. When that step would hold fewer rows than there are ranks, it takes rows from the
    step before it, so that every rank still gets the same number of batches and no row is seen twice.

    Args:
        cuts: `int64[steps + 1]`, the full steps.
        count: Rows of the epoch.
        ranks: Fewest rows of a step.
        drop_last: Whether to drop.

    Returns:
        `int64[steps + 1]`; rows from its last entry on are dropped.

    Raises:
        PadlessError: When nothing would be left, or the last step has too few rows and cannot take any.

    Example:
        >>> close_epoch(np.array([0, 8, 16]), 18, ranks=4, drop_last=False).tolist()
        [0, 8, 14, 18]
    """
    if len(cuts) == 1 and drop_last:
        raise PadlessError(
            f"{count:,} rows make not one step: with drop_last=True an epoch would give nothing; ask for fewer rows or "
            "tokens per step"
        )
    rest = count - int(cuts[-1])
    if rest == 0 or drop_last:
        return cuts
    if rest >= ranks:
        return np.append(cuts, count)
    if len(cuts) > 1 and count - ranks - int(cuts[-2]) >= ranks:
        return np.concatenate([cuts[:-1], [count - ranks, count]])
    raise PadlessError(
        f"{count:,} rows leave {rest} for the last step, too few for {ranks} ranks, and the step before it has none to "
        "give: pass drop_last=True (another few rows are left out every epoch) or fewer rows or tokens per step"
    )
