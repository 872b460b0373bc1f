"""NNLSHP, non-negative least squares histogram-packing: full rows of up to three samples (Krell et al. 2021)."""

import numpy as np

from padless.errors import PadlessError
from padless.planning.patterns import Patterns
from padless.planning.strategies.best_fit_decreasing import best_fit_decreasing

DEPTH = 3
LARGEST = 1024  # units per row; the time grows with the fifth power of the capacity
_SHORT, _SHORT_WEIGHT = 8, 0.09  # residuals of very short lengths cost little: they fill gaps


def nnlshp(lengths: np.ndarray, counts: np.ndarray, capacity: int, max_segments: int | None) -> Patterns:
    """Pack a histogram of units into rows of at most three samples.

    Every multiset of up to three lengths that fills a row exactly is a column; non-negative least squares finds how
    often to use each, rounded to the nearest whole number. Where a column then asks for samples that there are none
    of, its place stays empty. Samples left over go best-fit-decreasing; the published code gives each its own row.

    Raises:
        PadlessError: A capacity above 1,024 units; `optimal` with `max_segments=3` does better in less time.
    """
    if capacity > LARGEST:
        raise PadlessError(
            f"nnlshp is for rows of at most {LARGEST:,} units, not {capacity:,}: its time grows with the fifth power; "
            "use strategy='optimal' with max_segments=3"
        )
    depth = min(DEPTH, max_segments or DEPTH)
    wanted = np.zeros(capacity + 1)
    wanted[lengths] = counts
    columns = _columns(capacity, depth)
    weights = np.where(np.arange(capacity + 1) <= _SHORT, _SHORT_WEIGHT, 1.0)
    uses = np.rint(_least_squares(columns, weights, wanted)).astype(np.int64)
    left = np.zeros(capacity + 1, np.int64)
    left[lengths] = counts
    kinds = [kind for column in np.flatnonzero(uses) for kind in _take(columns[column], int(uses[column]), left)]
    rest = np.flatnonzero(left)
    patterns = Patterns.of(kinds)
    if rest.size:
        patterns = patterns.joined(best_fit_decreasing(rest, left[rest], capacity, depth))
    return patterns


def _columns(capacity: int, depth: int) -> np.ndarray:
    """Every way to fill a row with up to `depth` lengths, int64[P, 3], descending; 0 is no sample."""
    found = [np.array([[capacity, 0, 0]])]
    if depth >= 2:
        short = np.arange(1, capacity // 2 + 1)
        found.append(np.stack([capacity - short, short, np.zeros_like(short)], axis=1))
    if depth >= 3:
        for least in range(1, capacity // 3 + 1):
            middle = np.arange(least, (capacity - least) // 2 + 1)
            found.append(np.stack([capacity - least - middle, middle, np.full_like(middle, least)], axis=1))
    return np.concatenate(found)


def _take(column: np.ndarray, rows: int, left: np.ndarray) -> list[tuple[int, list[tuple[int, int]]]]:
    """Use a column `rows` times as far as samples are left; rows that run short keep what they got."""
    got = []
    for length in column[column > 0].tolist():
        got.append((length, min(rows, int(left[length]))))
        left[length] -= got[-1][1]
    ends = sorted({count for _, count in got if count})
    kinds, done = [], 0
    for end in ends:
        kinds.append((end - done, [(length, 1) for length, count in got if count >= end]))
        done = end
    return kinds


def _least_squares(columns: np.ndarray, weights: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Minimise |w (A x - b)| over x >= 0 (Lawson and Hanson 1974), where A counts the lengths in each column."""
    squared = np.where(np.arange(weights.size) > 0, weights**2, 0.0)
    uses = np.zeros(len(columns))
    active: list[int] = []
    limit = 1e-9 * max(1.0, float(wanted.max()))
    for _ in range(3 * weights.size):
        gain = (squared * (wanted - _supplied(columns, uses)))[columns].sum(axis=1)
        gain[active] = -np.inf
        best = int(gain.argmax())
        if gain[best] <= limit:
            break
        active.append(best)
        while True:
            trial = _solve(columns[active], squared, wanted)
            if (trial > 0).all():
                break
            now = uses[active]
            falling = trial <= 0
            step = float((now[falling] / np.maximum(now[falling] - trial[falling], 1e-300)).min())
            moved = now + step * (trial - now)
            uses[active] = np.where(falling & (moved <= limit), 0.0, moved)
            active = [column for column in active if uses[column] > 0]
        uses[active] = trial
    return uses


def _supplied(columns: np.ndarray, uses: np.ndarray) -> np.ndarray:
    used = np.flatnonzero(uses)
    total = np.zeros(int(columns[0, 0]) + 1)
    np.add.at(total, columns[used], uses[used, None])
    total[0] = 0.0
    return total


def _solve(columns: np.ndarray, squared: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    matrix = np.zeros((wanted.size, len(columns)))
    np.add.at(matrix, (columns, np.arange(len(columns))[:, None]), 1.0)
    weighted = squared[:, None] * matrix
    return np.linalg.solve(matrix.T @ weighted, weighted.T @ wanted)
