"""A rule in the language of PaddlePaddle's FlashMask: for each key, the rows (queries) that are masked."""

from typing import NamedTuple

import numpy as np

from padless.errors import PadlessError
from padless.masks.geometry import covering_pieces, tokens_of, window_of
from padless.rows import Batch


class FlashMask(NamedTuple):
    """Arguments of `paddle.nn.functional.flashmask_attention(q, k, v, startend_row_indices=..., causal=...)`.

    Attributes:
        startend_row_indices: int32[1, 1, T, n]. With `causal`, n is 1 and key j is masked for rows from value 0 on,
            and for rows before j. Without, n is 2: masked for rows from value 0 on, and for rows BEFORE value 1.
        causal: The flag that goes with it.
    """

    startend_row_indices: np.ndarray
    causal: bool


def flash_mask(batch: Batch) -> FlashMask:
    """Row indices of a rule; O(T) numbers for any rule with an order.

    Padding sees itself, in short pieces, so that no softmax is over nothing.

    Args:
        batch: Arrays or tensors.

    Raises:
        PadlessError: For a visibility table: its masked rows are no interval.

    Source:
        FlashMask, arXiv 2410.01359; the Paddle documentation of `flashmask_attention`.

    Example:
        >>> from padless import Rule, collate
        >>> flash_mask(collate([[1, 2, 3], [4, 5]])).startend_row_indices[0, 0, :, 0]
        array([3, 3, 3, 5, 5], dtype=int32)
        >>> row = [{"input_ids": [1, 2, 3, 4], "prefix_length": 2}]
        >>> flash_mask(collate(row, rule=Rule(kind="prefix-lm"))).startend_row_indices[0, 0].tolist()
        [[4, 0], [4, 0], [4, 2], [4, 3]]
    """
    rule = batch.rule
    if rule.visibility is not None:
        raise PadlessError(
            f"{rule} cannot be said in FlashMask's row indices, one interval of rows per key; use "
            "padless.masks.slices, calls, flex or dense"
        )
    cuts, _ = covering_pieces(batch)
    widths = np.diff(cuts)
    starts, ends = np.repeat(cuts[:-1], widths), np.repeat(cuts[1:], widths)
    slots = np.arange(batch.num_slots)
    left, right = window_of(batch)
    masked_from = ends if left is None else np.minimum(ends, slots + left + 1)
    if rule.kind == "causal":
        return FlashMask(masked_from.astype(np.int32)[None, None, :, None], causal=True)
    masked_before = _first_of_rank(batch, starts)
    if right is not None:
        masked_before = np.maximum(masked_before, slots - right)
    columns = np.stack([masked_from, masked_before], axis=-1)
    return FlashMask(columns.astype(np.int32)[None, None], causal=False)


def _first_of_rank(batch: Batch, starts: np.ndarray) -> np.ndarray:
    """The first slot of each slot's piece that has its rank; ranks do not fall, so those before it do not see it."""
    slots = np.arange(batch.num_slots)
    if not batch.rule.has_ranks:
        return starts
    rank = tokens_of(batch).rank
    fresh = np.ones(len(slots), dtype=bool)
    fresh[1:] = rank[1:] != rank[:-1]
    fresh |= slots == starts
    return np.maximum.accumulate(np.where(fresh, slots, 0))
