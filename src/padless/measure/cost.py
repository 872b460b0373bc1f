"""The cost model of a training step: `seconds = constant + linear * tokens + quadratic * sum(length ** 2)`."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from padless.errors import PadlessError
from padless.measure.workloads import Work


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Seconds of forward and backward passes, fitted on this machine.

    Attributes:
        constant: Of one call, however small.
        linear: Of one token outside attention: projections, MLP, norms, output layer and loss.
        quadratic: Of one unit of `sum(length ** 2)`, i.e. two (query, key) pairs of causal attention.
        step: Of the optimizer step, once.
        residual: Median relative error on the measurements that it was fitted to.

    Example:
        >>> model = CostModel(constant=0.0, linear=1e-3, quadratic=1e-6)
        >>> round(model.predict(calls=1, tokens=2000, sum_squares=2000**2), 6), round(model.crossover)
        (6.0, 1000)
    """

    constant: float
    linear: float
    quadratic: float
    step: float = 0.0
    residual: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 <= value < float("inf"):
                raise PadlessError(f"a cost model with {name}={value}: no part of a step can take less than 0 seconds")

    def predict(self, *, calls: int, tokens: float, sum_squares: float) -> float:
        """Seconds of one optimizer step made of `calls` micro-batches."""
        return self.step + self.constant * calls + self.linear * tokens + self.quadratic * sum_squares

    def of(self, work: Work, *, dense: bool = False) -> float:
        """Seconds of one optimizer step; `dense`: with a mask over whole rows, which scores both triangles."""
        squares = 2 * work.row_squares if dense else work.sum_squares
        return self.predict(calls=work.calls, tokens=work.slots, sum_squares=squares)

    def attention_share(self, *, tokens: float, sum_squares: float) -> float:
        """Attention's part of what depends on the tokens, 0 to 1."""
        attention, rest = self.quadratic * sum_squares, self.linear * tokens
        return attention / (attention + rest) if attention + rest else 0.0

    @property
    def crossover(self) -> float:
        """The length from which attention costs more than everything else, in tokens; infinite if it never does."""
        return self.linear / self.quadratic if self.quadratic else float("inf")


def fit(
    *,
    calls: Sequence[float],
    tokens: Sequence[float],
    sum_squares: Sequence[float],
    seconds: Sequence[float],
    step: float = 0.0,
) -> CostModel:
    """Fit the model to measurements, all relative errors weighing the same, no coefficient below 0.

    Args:
        calls: Calls of each measurement.
        tokens: Its slots.
        sum_squares: Its sum of length ** 2.
        seconds: What it took, without the optimizer step.
        step: Seconds of the optimizer step, measured by itself.

    Raises:
        PadlessError: When there are fewer than three measurements, or they cannot tell the coefficients apart.

    Example:
        >>> model = fit(calls=[1, 1, 1, 1], tokens=[10, 20, 40, 80], sum_squares=[100, 100, 1600, 400],
        ...             seconds=[0.3, 0.4, 2.1, 1.3])
        >>> round(model.constant, 6), round(model.linear, 6), round(model.quadratic, 6)
        (0.1, 0.01, 0.001)
    """
    columns = np.array([calls, tokens, sum_squares], dtype=np.float64).T
    taken = np.asarray(seconds, dtype=np.float64)
    if len(taken) < columns.shape[1] or not (taken > 0).all():
        raise PadlessError(f"a cost model needs at least 3 measurements that took time; {len(taken)} were given")
    scaled = columns / taken[:, None]
    norms = np.linalg.norm(scaled, axis=0)
    if np.linalg.matrix_rank(scaled / norms) < columns.shape[1]:
        raise PadlessError(
            "these measurements cannot tell constant, linear and quadratic cost apart: "
            "measure several lengths, and several token counts of one length"
        )
    found = _nonnegative(scaled / norms) / norms
    constant, linear, quadratic = found.tolist()
    residual = float(np.median(np.abs(scaled @ found - 1)))
    return CostModel(constant=constant, linear=linear, quadratic=quadratic, step=step, residual=residual)


def _nonnegative(matrix: np.ndarray) -> np.ndarray:
    """The x >= 0 that brings `matrix @ x` closest to ones: the best of all 2**3 choices of which may be above 0."""
    count = matrix.shape[1]
    best, least = np.zeros(count), float(len(matrix))
    for chosen in itertools.product([False, True], repeat=count):
        active = np.flatnonzero(chosen)
        if not len(active):
            continue
        found = np.linalg.lstsq(matrix[:, active], np.ones(len(matrix)), rcond=None)[0]
        off = float(np.square(matrix[:, active] @ found - 1).sum())
        if (found >= 0).all() and off < least:
            least = off
            best = np.zeros(count)
            best[active] = found
    return best
