"""How few rows any plan could need: bounds that hold whatever the strategy."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from padless.errors import PadlessError
from padless.lengths.histogram import LengthHistogram

TOKENS = "L1"
MARTELLO_TOTH = "L2"
SEGMENTS = "max-segments"
LINEAR_PROGRAM = "LP"

_EXACT = 1 << 62  # tokens beyond which the sums of L2 would not fit 64 bits; L1 is exact at any size


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A proved lower bound on the number of rows.

    Attributes:
        rows: No plan that keeps samples whole has fewer rows.
        by: What proves it: `L1` (tokens), `L2` (Martello and Toth), `max-segments`, or `LP` (column generation).
    """

    rows: int
    by: str


def lower_bound(
    lengths: Any, capacity: int, *, max_segments: int | None = None, align: int = 1, lp: int | None = None
) -> Bound:
    """The best bound on the rows that `lengths` need, and what proves it.

    L1 = ceil(tokens / capacity). L2 (Martello and Toth 1990) looks at every threshold K up to half a row: samples
    above `capacity - K` stand alone, those above half never share, and what is left must fit beside them. A row of
    at most m segments gives ceil(N / m). Ties go to the simplest proof.

    Args:
        lengths: Sample lengths [N] in tokens, or their `LengthHistogram`.
        capacity: Tokens per row, alignment included.
        max_segments: Most segments a row may hold.
        align: Every segment takes a multiple of this many slots.
        lp: A bound from a linear program, when one was computed.

    Raises:
        PadlessError: A length above the capacity, which no plan can place whole.

    Example:
        >>> lower_bound([6, 6, 6, 2], 10)   # 20 tokens, but no two sixes share a row
        Bound(rows=3, by='L2')
        >>> lower_bound([6, 6, 6, 2], 10, max_segments=1)
        Bound(rows=4, by='max-segments')
    """
    histogram = lengths if isinstance(lengths, LengthHistogram) else LengthHistogram.of(lengths)
    units, room = histogram.padded(align), capacity // align
    if units.longest > room:
        raise PadlessError(
            f"a sample of {histogram.longest:,} tokens cannot be placed whole in rows of {capacity:,}"
            + (f" aligned to {align}" if align > 1 else "")
            + ": no bound on whole samples exists"
        )
    bounds = [Bound(rows=-(-units.tokens // room), by=TOKENS)]
    if units.tokens < _EXACT:
        bounds.append(Bound(rows=_martello_toth(units, room), by=MARTELLO_TOTH))
    if max_segments is not None:
        bounds.append(Bound(rows=-(-units.samples // max_segments), by=SEGMENTS))
    if lp is not None:
        bounds.append(Bound(rows=lp, by=LINEAR_PROGRAM))
    return max(bounds, key=lambda bound: bound.rows)


def _martello_toth(histogram: LengthHistogram, capacity: int) -> int:
    """L2 over every threshold that can matter: the distinct lengths up to half a row, and 0."""
    lengths, counts = histogram.lengths, histogram.counts
    samples = np.concatenate([[0], np.cumsum(counts)])
    tokens = np.concatenate([[0], np.cumsum(lengths * counts)])
    half = int(np.searchsorted(lengths, capacity // 2, side="right"))  # classes up to half a row
    thresholds = np.concatenate([[0], lengths[:half]])
    low = np.concatenate([[0], np.arange(half)])  # first class at or above the threshold
    high = np.searchsorted(lengths, capacity - thresholds, side="right")  # first class above capacity - K
    alone = samples[-1] - samples[high]
    paired, paired_tokens = samples[high] - samples[half], tokens[high] - tokens[half]
    small_tokens = tokens[half] - tokens[low]
    left = small_tokens - (paired * capacity - paired_tokens)
    return int((alone + paired + np.maximum(0, -(-left // capacity))).max())
