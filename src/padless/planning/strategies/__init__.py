"""One strategy per file; the table of their names."""

from padless.planning.strategies.best_fit_decreasing import best_fit_decreasing

STRATEGIES = {
    "best-fit-decreasing": best_fit_decreasing,
    "lpfhp": best_fit_decreasing,
}
