"""Concatenate and cut: full rows, at the price of samples cut at row ends."""

import numpy as np


def concat(
    lengths: np.ndarray, limit: int, align: int, max_segments: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Lay samples end to end in their own order and cut at every row end.

    This is what GPT-style pretraining and TRL's `wrapped` do. It cuts samples: a piece starts without the tokens
    before it, and its first token is no target. Use it when full rows are worth that.

    Args:
        lengths: Tokens of each sample, [N], of any length.
        limit: Slots per row, a multiple of `align`.
        align: Every sample begins at a multiple of this.
        max_segments: Most pieces in a row; a row may end early.

    Returns:
        row_offsets int64[R + 1], samples int64[S], starts int64[S], lengths int64[S].
    """
    sizes = -(-lengths.astype(np.int64) // align) * align
    ends = np.cumsum(sizes)
    cuts = _row_starts(ends, limit, max_segments)
    edges = np.union1d(cuts, np.concatenate([[0], ends[:-1]]))  # where a piece begins, in slots
    samples = np.searchsorted(ends, edges, side="right")
    starts = edges - (ends - sizes)[samples]
    stops = np.concatenate([edges[1:], ends[-1:]])
    pieces = np.minimum(stops - edges, lengths[samples] - starts)
    row_offsets = np.concatenate([np.searchsorted(edges, cuts), [edges.size]])
    return row_offsets, samples, starts, pieces


def _row_starts(ends: np.ndarray, limit: int, max_segments: int | None) -> np.ndarray:
    if max_segments is None:
        return np.arange(0, int(ends[-1]), limit)
    starts, at, total = [], 0, int(ends[-1])
    while at < total:
        starts.append(at)
        last = min(int(np.searchsorted(ends, at, side="right")) + max_segments - 1, ends.size - 1)
        at = min(at + limit, int(ends[last]))
    return np.array(starts)
