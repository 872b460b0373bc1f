"""Optimal: column generation from a best-fit plan, with the bound that the linear program proves."""

import numpy as np

from padless.errors import require
from padless.lengths import LengthHistogram, lower_bound
from padless.planning.patterns import Patterns
from padless.planning.spec import PlanSpec
from padless.planning.strategies.best_fit_decreasing import best_fit_decreasing


def optimal(
    lengths: np.ndarray, counts: np.ndarray, capacity: int, spec: PlanSpec, start: Patterns | None = None
) -> tuple[Patterns, int | None]:
    """Pack a histogram of units in as few rows as can be found, and prove how few rows any plan needs.

    Args:
        lengths: int64[D] ascending, units.
        counts: int64[D].
        capacity: Units per row.
        spec: For `max_segments`.
        start: A plan never to be worse than; best fit decreasing where none is given.

    Returns:
        The rows, and the bound by linear program (None where a simpler bound was met before).

    Raises:
        MissingExtraError: Without highspy and numba, before any work.
    """
    for module in ("highspy", "numba"):
        require(module, extra="optimal", feature=f"strategy {spec.strategy!r}")
    start = start or best_fit_decreasing(lengths, counts, capacity, spec.max_segments)
    histogram = LengthHistogram(lengths=lengths, counts=counts)
    known = lower_bound(histogram, capacity, max_segments=spec.max_segments).rows
    if start.rows == known:
        return start, None
    from padless.planning.optimal import solve

    solution = solve(lengths, counts, capacity, spec.max_segments, start, known=known)
    return solution.patterns, solution.bound or None
