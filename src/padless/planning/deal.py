"""Patterns and samples -> rows with ids: the seeded deal, linear in the samples."""

import numpy as np

from padless.planning.compiled import jit, use_numba
from padless.planning.patterns import Patterns
from padless.planning.shuffle import shuffle_keys, shuffled

ROW_ORDER, SAMPLE_ORDER = 0, 1  # streams of the seed
BLOCK = 1 << 12  # words of the shuffle that are made at once
_TABLE = 1 << 24  # longest length for which a table is cheaper than a search


def deal(patterns: Patterns, lengths: np.ndarray, align: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shuffle the rows, and give each of their segments a sample of its length.

    Rows stand in a seeded random order; going through them, each segment takes the next sample of its length from a
    seeded shuffle of all samples.

    Args:
        patterns: The rows by kind, in units of `align` tokens; they use every sample once.
        lengths: Tokens of the M samples.
        align: Tokens per unit.
        seed: Of both shuffles.

    Returns:
        row_offsets int64[R + 1], and in the order of segments the samples int64[M] and their
        lengths int64[M] or int32[M].
    """
    classes = np.unique(patterns.lengths)
    kinds = np.repeat(np.arange(patterns.counts.size, dtype=np.int32), patterns.counts)
    kinds = kinds[shuffled(kinds.size, seed, ROW_ORDER)]
    row_offsets = np.zeros(kinds.size + 1, np.int64)
    np.cumsum(patterns.widths[kinds], out=row_offsets[1:])
    items = np.repeat(np.searchsorted(classes, patterns.lengths), patterns.repeats).astype(_small(classes.size))
    if use_numba(lengths.size) and lengths.size < 1 << 31:
        samples, groups = _deal_compiled(patterns, classes, kinds, items, lengths, align, seed)
    else:
        groups = _segment_classes(patterns.widths, kinds, items, row_offsets)
        order = shuffled(lengths.size, seed, SAMPLE_ORDER)
        offered = _sample_classes(lengths, classes, align)[order]
        samples = np.empty(order.size, np.int64)
        samples[_stable_order(groups, classes.size)] = order[_stable_order(offered, classes.size)]
    # Where a unit is a token the class says the length; reading it there spares a walk through memory at random.
    known = classes.astype(np.int32 if int(classes[-1]) < 1 << 31 else np.int64)
    return row_offsets, samples, known[groups] if align == 1 else lengths[samples]


def _small(classes: int) -> type:
    return np.uint16 if classes <= 1 << 16 else np.uint32


def _segment_classes(widths: np.ndarray, kinds: np.ndarray, items: np.ndarray, row_offsets: np.ndarray) -> np.ndarray:
    """The length class of every segment, rows in order; `items` holds those of one row of each kind."""
    first = np.cumsum(widths) - widths
    where = np.repeat(first[kinds] - row_offsets[:-1], widths[kinds])
    where += np.arange(where.size)
    return items[where]


def _sample_classes(lengths: np.ndarray, classes: np.ndarray, align: int) -> np.ndarray:
    """The length class of every sample."""
    if int(lengths.max()) >= _TABLE:
        return np.searchsorted(classes, -(-lengths // align)).astype(_small(classes.size))
    return _class_table(int(lengths.max()), classes, align)[lengths]


def _class_table(longest: int, classes: np.ndarray, align: int) -> np.ndarray:
    return np.searchsorted(classes, -(-np.arange(longest + 1) // align)).astype(_small(classes.size))


def _stable_order(keys: np.ndarray, classes: int) -> np.ndarray:
    """Stable argsort in linear time: numpy sorts 16-bit keys by counting."""
    if classes <= 1 << 16:
        return np.argsort(keys, kind="stable")
    low = np.argsort(keys.astype(np.uint16), kind="stable")
    high = (keys >> np.uint32(16)).astype(np.uint16)[low]
    return low[np.argsort(high, kind="stable")]


def _deal_compiled(
    patterns: Patterns,
    classes: np.ndarray,
    kinds: np.ndarray,
    items: np.ndarray,
    lengths: np.ndarray,
    align: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The same deal in two passes: samples go to their class in shuffled order, then rows take from the classes."""
    totals = np.zeros(classes.size, np.int64)
    np.add.at(totals, items, np.repeat(patterns.counts, patterns.widths))
    begins = np.cumsum(totals) - totals
    bits, keys = shuffle_keys(lengths.size, seed, SAMPLE_ORDER)
    pool = np.empty(lengths.size, np.int32)
    jit(_collect)(_sample_classes(lengths, classes, align), bits, keys.astype(np.uint32), begins.copy(), pool)
    samples, groups = np.empty(lengths.size, np.int64), np.empty(lengths.size, items.dtype)
    first = np.concatenate([[0], np.cumsum(patterns.widths)])
    jit(_hand_out)(kinds, first, items, begins, pool, samples, groups)
    return samples, groups


def _collect(classes, bits, keys, at, pool):
    """Write the samples class by class into `pool`, each class in shuffled order; `at` is where each class begins.

    The words of the shuffle are made a block at a time, by loops without a branch, so that they are vectorised and
    the reads that follow overlap.
    """
    block = np.empty(min(1 << bits, BLOCK), np.uint32)
    mask, shift = np.uint32((1 << bits) - 1), np.uint32((bits + 1) // 2)
    for start in range(0, 1 << bits, block.size):
        for i in range(block.size):
            block[i] = np.uint32(start + i)
        for k in range(keys.shape[0]):
            to_xor, to_multiply = keys[k, 0], keys[k, 1]
            for i in range(block.size):
                word = np.uint32(np.uint32(block[i] ^ to_xor) * to_multiply) & mask
                block[i] = word ^ (word >> shift)
        kept = 0
        for i in range(block.size):
            word = block[i]
            block[kept] = word
            kept += word < classes.size
        for i in range(kept):
            sample = block[i]
            group = classes[sample]
            pool[at[group]] = sample
            at[group] += 1


def _hand_out(kinds, first, items, at, pool, samples, groups):
    """Go through the rows; each of their segments takes the next sample of its class."""
    segment = 0
    for row in range(kinds.size):
        kind = kinds[row]
        for i in range(first[kind], first[kind + 1]):
            group = items[i]
            samples[segment] = pool[at[group]]
            groups[segment] = group
            at[group] += 1
            segment += 1
