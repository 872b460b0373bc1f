"""Patterns and samples -> rows with ids: the seeded deal, linear in the samples."""

import numpy as np

from padless.planning.patterns import Patterns
from padless.planning.shuffle import shuffled

ROW_ORDER, SAMPLE_ORDER = 0, 1  # streams of the seed
_TABLE = 1 << 24  # longest length for which a table is cheaper than a search


def deal(patterns: Patterns, lengths: np.ndarray, align: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Shuffle the rows, and give each of their segments a sample of its length.

    Rows stand in a seeded random order; going through them, each segment takes the next sample of its length from a
    seeded shuffle of all samples.

    Args:
        patterns: The rows by kind, in units of `align` tokens; they use every sample once.
        lengths: Tokens of the M samples.
        align: Tokens per unit.
        seed: Of both shuffles.

    Returns:
        row_offsets int64[R + 1], and the samples in the order of segments, int32[M] or int64[M].
    """
    classes = np.unique(patterns.lengths)
    kinds = np.repeat(np.arange(patterns.counts.size, dtype=np.int32), patterns.counts)
    kinds = kinds[shuffled(kinds.size, seed, ROW_ORDER)]
    row_offsets = np.concatenate([[0], np.cumsum(patterns.widths[kinds])])
    wanted = _segment_classes(patterns, classes, kinds, row_offsets)
    order = shuffled(lengths.size, seed, SAMPLE_ORDER)
    offered = _sample_classes(lengths, classes, align)[order]
    samples = np.empty_like(order)
    samples[_stable_order(wanted, classes.size)] = order[_stable_order(offered, classes.size)]
    return row_offsets, samples


def _small(classes: int) -> type:
    return np.uint16 if classes <= 1 << 16 else np.uint32


def _segment_classes(patterns: Patterns, classes: np.ndarray, kinds: np.ndarray, row_offsets: np.ndarray) -> np.ndarray:
    """The length class of every segment, rows in order."""
    items = np.repeat(np.searchsorted(classes, patterns.lengths), patterns.repeats).astype(_small(classes.size))
    widths = patterns.widths
    first = np.cumsum(widths) - widths
    shift = (first[kinds] - row_offsets[:-1]).astype(np.int64)
    where = np.repeat(shift, widths[kinds])
    where += np.arange(where.size)
    return items[where]


def _sample_classes(lengths: np.ndarray, classes: np.ndarray, align: int) -> np.ndarray:
    """The length class of every sample."""
    longest = int(lengths.max())
    if longest >= _TABLE:
        return np.searchsorted(classes, -(-lengths // align)).astype(_small(classes.size))
    table = np.searchsorted(classes, -(-np.arange(longest + 1) // align)).astype(_small(classes.size))
    return table[lengths]


def _stable_order(keys: np.ndarray, classes: int) -> np.ndarray:
    """Stable argsort in linear time: numpy sorts 16-bit keys by counting."""
    if classes <= 1 << 16:
        return np.argsort(keys, kind="stable")
    low = np.argsort(keys.astype(np.uint16), kind="stable")
    high = (keys >> np.uint32(16)).astype(np.uint16)[low]
    return low[np.argsort(high, kind="stable")]
