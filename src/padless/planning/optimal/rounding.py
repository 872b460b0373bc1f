"""A fractional solution -> whole rows: round down, take what is nearly whole, pack the rest best-fit."""

import numpy as np

from padless.planning.optimal.pricing import Columns
from padless.planning.patterns import Patterns
from padless.planning.strategies.best_fit_decreasing import best_fit_decreasing

# Fractions from which one more copy of a row is worth trying; 1.1: none.
THRESHOLDS = (1.1, 0.8, 0.6, 0.45, 0.3, 0.15, 0.02)
_ALMOST = 1e-6


def round_rows(
    lengths: np.ndarray,
    counts: np.ndarray,
    capacity: int,
    max_segments: int | None,
    columns: Columns,
    uses: np.ndarray,
) -> Patterns:
    """The best whole plan found from `uses` of `columns`."""
    tried = [_round(lengths, counts, capacity, max_segments, columns, uses, t) for t in THRESHOLDS]
    return min(tried, key=lambda patterns: patterns.rows)


def _round(lengths, counts, capacity, max_segments, columns, uses, threshold) -> Patterns:
    left = counts.copy()
    kinds: list[tuple[int, list[tuple[int, int]]]] = []
    whole = np.floor(uses + _ALMOST)
    fraction = uses - whole

    def take(column: int, wanted: int) -> None:
        part = slice(columns.offsets[column], columns.offsets[column + 1])
        classes, repeats = columns.classes[part], columns.repeats[part]
        copies = min(wanted, int((left[classes] // repeats).min()))
        if copies > 0:
            left[classes] -= copies * repeats
            runs = zip(lengths[classes[::-1]].tolist(), repeats[::-1].tolist(), strict=True)
            kinds.append((copies, list(runs)))

    for column in np.flatnonzero(whole).tolist():
        take(column, int(whole[column]))
    for column in np.argsort(-fraction, kind="stable").tolist():
        if fraction[column] < threshold:
            break
        take(column, 1)
    rest = np.flatnonzero(left)
    patterns = Patterns.of(kinds)
    if rest.size:
        patterns = patterns.joined(best_fit_decreasing(lengths[rest], left[rest], capacity, max_segments))
    return patterns
