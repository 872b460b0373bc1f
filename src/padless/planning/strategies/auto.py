"""Auto: the best of the cheap strategies, and a search for the optimum only where that could gain something."""

import numpy as np

from padless.lengths import LengthHistogram, lower_bound
from padless.planning.patterns import Patterns
from padless.planning.spec import PlanSpec
from padless.planning.strategies.best_fit_decreasing import best_fit_decreasing
from padless.planning.strategies.optimal import optimal
from padless.planning.strategies.spfhp import spfhp


def auto(lengths: np.ndarray, counts: np.ndarray, capacity: int, spec: PlanSpec) -> tuple[Patterns, int | None]:
    """Pack a histogram of units; `optimal` runs only if the gap to the bound is above `spec.tolerance`.

    Where it has to run it needs its extra: falling back without a word would give other rows on another machine.
    """
    cheap = [strategy(lengths, counts, capacity, spec.max_segments) for strategy in (best_fit_decreasing, spfhp)]
    best = min(cheap, key=lambda patterns: patterns.rows)
    histogram = LengthHistogram(lengths=lengths, counts=counts)
    bound = lower_bound(histogram, capacity, max_segments=spec.max_segments).rows
    if best.rows - bound <= spec.tolerance * bound:
        return best, None
    return optimal(lengths, counts, capacity, spec, best)
