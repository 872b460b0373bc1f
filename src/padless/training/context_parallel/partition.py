"""Which context-parallel rank owns which slot of a packed row.

A causal query works in proportion to its place in its segment, so the ranks of an equal cut do unequal work: the last
of 8 does 15 times that of the first. Zigzag gives every rank an early and a late chunk of each segment, and both
together cost the same on all of them.
"""

import numpy as np

from padless.errors import PadlessError


def zigzag(cu_seqlens: np.ndarray, ranks: int) -> np.ndarray:
    """Owners when each segment is cut into `2 * ranks` chunks and rank r takes chunks r and `2 * ranks - 1 - r`.

    The same slots as Transformer Engine's `thd_get_partitioned_indices`, and so as Megatron-Core's rotary embedding
    and multi-token prediction assume.

    Args:
        cu_seqlens: int[S + 1], physical boundaries of segments, padding included, from 0 to T; each a multiple of
            `2 * ranks`.
        ranks: Context-parallel ranks.

    Returns:
        `int64[T]`, the rank of each slot.

    Raises:
        PadlessError: When a boundary is no multiple of `2 * ranks`.

    Example:
        >>> zigzag(np.array([0, 8, 12]), 2).tolist()
        [0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 0]
    """
    chunks = 2 * ranks
    off = np.flatnonzero(cu_seqlens % chunks) if ranks > 1 else []
    if len(off):
        i = int(off[0])
        raise PadlessError(
            f"boundary {i} of the row is slot {cu_seqlens[i]:,}, no multiple of 2 * {ranks} context-parallel ranks: a "
            f"segment could not be cut into {chunks} equal chunks; collate with align={chunks} (or a multiple of it)"
        )
    place, sizes = _places(cu_seqlens)
    chunk = place * chunks // np.maximum(sizes, 1)
    return np.minimum(chunk, chunks - 1 - chunk)


def contiguous(cu_seqlens: np.ndarray, ranks: int) -> np.ndarray:
    """Owners when the row is cut into `ranks` equal runs, whatever lies in them.

    The order that rings and state-space layers want. Causal attention is as unequal as can be.

    Args:
        cu_seqlens: int[S + 1], boundaries from 0 to T; only T matters.
        ranks: Context-parallel ranks.

    Returns:
        `int64[T]`, the rank of each slot.

    Example:
        >>> contiguous(np.array([0, 5, 6]), 2).tolist()
        [0, 0, 0, 1, 1, 1]
    """
    slots = int(cu_seqlens[-1])
    _check_equal(slots, ranks)
    return np.arange(slots) // max(slots // ranks, 1)


def documents(cu_seqlens: np.ndarray, ranks: int) -> np.ndarray:
    """Owners when each segment is cut as by `zigzag` without being padded: what the chunks leave over goes round.

    A segment of n tokens gives `2 * ranks` chunks of `n // (2 * ranks)`; the tokens behind them go one by one to the
    ranks in turn, and the turn goes on in the next segment, so that every rank holds the same number of tokens
    (per-document sharding of WLB-LLM, arXiv 2503.17924, section 5). No alignment, hence no padding, is needed between
    segments. Kernels that derive positions from `2 * ranks` equal chunks cannot take this order.

    Args:
        cu_seqlens: int[S + 1], boundaries of segments from 0 to T, T a multiple of `ranks`.
        ranks: Context-parallel ranks.

    Returns:
        `int64[T]`, the rank of each slot.

    Example:
        >>> documents(np.array([0, 9, 10]), 2).tolist()
        [0, 0, 1, 1, 1, 1, 0, 0, 0, 1]
    """
    _check_equal(int(cu_seqlens[-1]), ranks)
    chunks = 2 * ranks
    place, sizes = _places(cu_seqlens)
    width = sizes // chunks
    chunk = place // np.maximum(width, 1)
    left = place - width * chunks  # >= 0 behind the chunks
    rests = np.diff(cu_seqlens) % chunks
    turn = np.repeat(np.cumsum(rests) - rests, np.diff(cu_seqlens))
    return np.where(left >= 0, (turn + left) % ranks, np.minimum(chunk, chunks - 1 - chunk))


SCHEMES = {"zigzag": zigzag, "contiguous": contiguous, "documents": documents}


def _places(cu_seqlens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64[T] each: the place of a slot in its segment, and the segment's size."""
    sizes = np.diff(cu_seqlens).astype(np.int64)
    starts = np.repeat(cu_seqlens[:-1].astype(np.int64), sizes)
    return np.arange(len(starts)) - starts, np.repeat(sizes, sizes)


def _check_equal(slots: int, ranks: int) -> None:
    if slots % ranks:
        raise PadlessError(
            f"a row of {slots:,} slots does not divide over {ranks} context-parallel ranks: their tensors would differ "
            f"in shape; collate with pad_to_multiple={ranks}, which gives {-(-slots // ranks) * ranks:,} slots"
        )
