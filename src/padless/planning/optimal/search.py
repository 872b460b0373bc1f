"""Column generation: a fractional optimum, the bound it proves, and a whole plan next to it."""

import itertools
import math
from dataclasses import dataclass

import numpy as np

from padless.planning.optimal.coarse import Level, finer_columns, finer_prices, levels
from padless.planning.optimal.master import Master
from padless.planning.optimal.pricing import UNIT, Columns, price
from padless.planning.optimal.rounding import round_rows
from padless.planning.patterns import Patterns

# Limits count steps and not seconds, so that a slow machine finds the same plan.
ROUNDS = 200
COARSE_ROUNDS = 60
COARSE_GAP = 3e-4  # how far from its bound a coarse level may stop: its lengths are not the true ones anyway
SIMPLEX_WORK = 200_000_000  # simplex iterations x distinct lengths
SMOOTHING = 0.8
TIGHT = 0.99  # share of slots filled from which prices in proportion to length are the better start
COLUMNS_SHARE, COLUMNS_LEAST = 0.1, 64  # columns added in a round, of the distinct lengths: the best ones
LARGEST_TABLE = 1 << 28  # distinct lengths x capacity x depth beyond which a level is left out


@dataclass(frozen=True, kw_only=True, eq=False)
class Solution:
    """A plan by patterns and what the linear program proves.

    Attributes:
        patterns: Whole rows that place every sample.
        bound: No plan has fewer rows, by exact arithmetic; 0 where the finest level was left out.
        rounds: Pricing rounds, all levels together.
    """

    patterns: Patterns
    bound: int
    rounds: int


def solve(
    lengths: np.ndarray, counts: np.ndarray, capacity: int, max_segments: int | None, start: Patterns, *, known: int
) -> Solution:
    """Search for fewer rows than `start` has.

    Args:
        lengths: int64[D], ascending, units.
        counts: int64[D].
        capacity: Units per row.
        max_segments: Most segments in a row, or None.
        start: A plan to begin from and never to be worse than.
        known: A lower bound; the search stops where it is met.
    """
    best, bound, rounds = start, 0, 0
    previous: tuple[Level, Columns, np.ndarray, np.ndarray] | None = None
    tokens = sum(n * c for n, c in zip(lengths.tolist(), counts.tolist(), strict=True))
    steps = levels(lengths, counts, capacity)
    for level in steps[-1:] if tokens > TIGHT * start.rows * capacity else steps:
        if level.lengths.size * level.capacity * min(max_segments or 1, 64) > LARGEST_TABLE:
            break
        finest = level.step == 1
        search = _Search(level, max_segments, known if finest else 0)
        search.begin(start if finest else None, previous)
        search.run(ROUNDS if finest else COARSE_ROUNDS, tight=finest)
        rounds += search.rounds
        previous = (level, search.master.columns, search.uses, search.prices)
        if finest:
            bound = search.bound
            found = round_rows(lengths, counts, capacity, max_segments, search.master.columns, search.uses)
            best = min(best, found, key=lambda patterns: patterns.rows)
    return Solution(patterns=best, bound=bound, rounds=rounds)


class _Search:
    """Column generation on one level, with dual smoothing (Wentges 1997)."""

    def __init__(self, level: Level, max_segments: int | None, known: int) -> None:
        self.level = level
        self.max_segments = max_segments
        self.known = known
        self.master = Master(level.counts)
        self.bound = 0  # proved, rounded up to whole rows
        self.farley = 0.0
        self.rounds = 0
        self.uses = np.zeros(0)
        self.prices = np.zeros(level.lengths.size)
        self.centre = level.lengths / level.capacity  # the prices behind the best bound so far

    def begin(self, start: Patterns | None, previous: tuple[Level, Columns, np.ndarray, np.ndarray] | None) -> None:
        level = self.level
        self.master.add(_uniform(level, self.max_segments))
        if start is not None:
            self.master.add(_from_patterns(start, level.lengths))
        if previous is not None:
            coarse, columns, uses, prices = previous
            self.master.add(finer_columns(columns, uses, coarse, level))
            self.centre = finer_prices(prices, coarse, level)

    def run(self, most: int, *, tight: bool) -> None:
        objective, self.uses, self.prices = self.master.solve()
        misses = 0
        for _ in range(most):
            if self._enough(objective, tight=tight):
                break
            weight = max(0.0, 1 - (misses + 1) * (1 - SMOOTHING)) if misses < 10 else 0.0
            fresh = self._price(weight * self.centre + (1 - weight) * self.prices)
            self.rounds += 1
            if fresh == 0:
                if weight == 0:
                    break
                misses += 1
                continue
            misses = 0
            objective, self.uses, self.prices = self.master.solve()
            if self.master.iterations * self.level.lengths.size > SIMPLEX_WORK:
                break

    def _enough(self, objective: float, *, tight: bool) -> bool:
        target = math.ceil(objective - 1e-6 * max(1.0, objective * 1e-6))
        if max(self.bound, self.known) >= target:
            return True
        return not tight and objective - self.farley <= COARSE_GAP * objective

    def _price(self, prices: np.ndarray) -> int:
        """Price out, improve the bound, and add the columns that pay at the master's own prices."""
        level = self.level
        whole = np.floor(prices * UNIT).astype(np.int64)
        value, columns = price(level.lengths, whole, level.capacity, self.max_segments)
        total = sum(p * c for p, c in zip(whole.tolist(), level.counts.tolist(), strict=True))
        if value > 0:
            farley = total / value
            if farley > self.farley:
                self.farley, self.centre = farley, prices
                self.bound = max(self.bound, -(-total // value))
        values = columns.values(self.prices)
        best = np.argsort(-values, kind="stable")[: max(COLUMNS_LEAST, int(COLUMNS_SHARE * values.size))]
        paying = best[values[best] > 1 + 1e-9]
        return self.master.add(columns.only(paying)) if paying.size else 0


def _uniform(level: Level, max_segments: int | None) -> Columns:
    """For every length the row that holds nothing else."""
    repeats = level.capacity // level.lengths
    if max_segments is not None:
        repeats = np.minimum(repeats, max_segments)
    size = level.lengths.size
    return Columns(np.arange(size + 1), np.arange(size, dtype=np.int32), repeats.astype(np.int32))


def _from_patterns(patterns: Patterns, lengths: np.ndarray) -> Columns:
    """The kinds of rows of a plan, each class once per row and ascending."""
    offsets, classes, repeats = [0], [], []
    numbers = np.searchsorted(lengths, patterns.lengths).tolist()
    times = patterns.repeats.tolist()
    bounds = patterns.offsets.tolist()
    for a, b in itertools.pairwise(bounds):
        row: dict[int, int] = {}
        for run in range(a, b):
            row[numbers[run]] = row.get(numbers[run], 0) + times[run]
        ordered = sorted(row.items())
        classes += [c for c, _ in ordered]
        repeats += [n for _, n in ordered]
        offsets.append(len(classes))
    return Columns(np.array(offsets, np.int64), np.array(classes, np.int32), np.array(repeats, np.int32))
