"""A rule in the language of MagiAttention: rectangles of queries and keys, each full or cut off along a diagonal."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from padless.masks.geometry import changes, pieces_of, window_of
from padless.masks.stretches import Stretches, stretches_of
from padless.rows import Batch
from padless.rows.tensors import host

FULL, CAUSAL, INVERSE_CAUSAL, BICAUSAL = range(4)
"""Types of a slice with nq queries i and nk keys j: CAUSAL sees `j <= i + nk - nq` (bottom right), INVERSE_CAUSAL
`j >= i` (top left), BICAUSAL both."""


class Slices(NamedTuple):
    """Arguments of `magi_attention.functional.flex_flash_attn_func`; wrap them in `torch.from_numpy`.

    A query that several slices hold sees the union of them (leave `disable_fwd_atomic_reduction` off then). Slots that
    no slice holds, padding, get no attention.

    Attributes:
        q_ranges: int32[N, 2], first slot and end of the queries.
        k_ranges: int32[N, 2], of the keys.
        attn_type_map: int32[N], 0 full, 1 causal, 2 inverse causal, 3 bicausal.
    """

    q_ranges: np.ndarray
    k_ranges: np.ndarray
    attn_type_map: np.ndarray


def magi_slices(batch: Batch) -> Slices:
    """Compile a rule, any rule, to slices; they never overlap as pairs of query and key.

    Source:
        MagiAttention, `flex_flash_attn_func`; windows as its `infer_attn_mask_from_sliding_window` cuts them.

    Example:
        >>> from padless import Rule, collate
        >>> made = magi_slices(collate([[1, 2, 3, 4, 5]], rule=Rule(window=(2, None))))
        >>> made.q_ranges.tolist(), made.k_ranges.tolist(), made.attn_type_map
        ([[0, 2], [2, 5]], [[0, 2], [0, 5]], array([1, 3], dtype=int32))
    """
    left, right = window_of(batch)
    # Limits so far that nothing meets them stand for no limit.
    far = batch.num_slots
    left, right = far if left is None else left, far if right is None else right
    if batch.rule.visibility is not None:
        q_first, q_last, k_first, k_last = _visible_rectangles(batch)
        rights = np.full(len(q_first), right)
    else:
        stretches: Stretches = stretches_of(batch)
        q_first, q_last, k_first, k_last = stretches.first, stretches.last, stretches.begin, stretches.last
        rights = np.where(stretches.causal, 0, right)
    return _cut(q_first, q_last, k_first, k_last, left, rights)


def _cut(
    q_first: np.ndarray, q_last: np.ndarray, k_first: np.ndarray, k_last: np.ndarray, left: int, right: np.ndarray
) -> Slices:
    """Rectangles within `q - left <= k <= q + right`, cut where an edge of the band enters or leaves the rectangle."""
    q_first = np.maximum(q_first, k_first - right)
    q_last = np.maximum(np.minimum(q_last, k_last + left), q_first)
    # From `lower` on the first key moves with the query; up to `upper` the last key does.
    lower = np.clip(k_first + left, q_first, q_last)
    upper = np.clip(k_last - right, q_first, q_last)
    cuts = np.sort(np.stack([q_first, lower, upper, q_last], axis=1), axis=1)
    parts = []
    for a, b in pairwise(cuts.T):
        moves_below, moves_above = a >= lower, b <= upper
        keys = np.where(moves_below, a - left, k_first), np.where(moves_above, b + right, k_last)
        kind = CAUSAL * moves_above + INVERSE_CAUSAL * moves_below
        parts.append(np.stack([a, b, *keys, kind], axis=1)[a < b])
    table = np.concatenate(parts).astype(np.int32)
    table = table[np.argsort(table[:, 0], kind="stable")]
    return Slices(table[:, :2].copy(), table[:, 2:4].copy(), table[:, 4].copy())


def _visible_rectangles(batch: Batch) -> tuple[np.ndarray, ...]:
    """Runs of queries of one rank against runs of keys that they see."""
    table = np.array(batch.rule.visibility)
    ranks = host(batch.ranks)
    rectangles = []
    pieces = pieces_of(batch)
    for start, length in zip(pieces.starts.tolist(), pieces.lengths.tolist(), strict=True):
        mine = ranks[start : start + length]
        for q_first, q_last in _runs(mine):
            seen = table[mine[q_first]][mine]
            rectangles += [
                (start + q_first, start + q_last, start + k_first, start + k_last)
                for k_first, k_last in _runs(seen)
                if seen[k_first]
            ]
    return tuple(np.array(rectangles).T)


def _runs(values: np.ndarray) -> list[tuple[int, int]]:
    return list(pairwise([*np.flatnonzero(changes(values)).tolist(), len(values)]))
