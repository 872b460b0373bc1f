"""Tokens and labels some places ahead, inside segments: what next-token and multi-token prediction train on."""

from typing import Any

import numpy as np

from padless.errors import PadlessError
from padless.rows import Batch
from padless.rows.tensors import is_tensor


def rolled(batch: Batch, x: Any, *, by: int = 1, fill: float = 0) -> Any:
    """`out[i] = x[i + by]` where that slot belongs to the same segment, and `fill` everywhere else.

    Roll the whole row first and divide it over ranks after that: the token `by` places ahead may lie on another rank.
    Depth d (from 0) of multi-token prediction embeds `rolled(batch, batch.input_ids, by=d + 1)` and is trained on
    `rolled(batch, batch.labels, by=d + 2, fill=-100)`; the labels of a batch are unshifted.

    Args:
        batch: Whose segments.
        x: `[T, ...]`, one entry per slot.
        by: Places ahead, at least 0.
        fill: What stands where the segment has no such token, and on padding.

    Raises:
        PadlessError: When `x` does not run over the slots, or `by` is negative.

    Example:
        >>> from padless import collate
        >>> batch = collate([[1, 2, 3], [4, 5]], align=4)
        >>> rolled(batch, batch.input_ids).tolist()
        [2, 3, 0, 0, 5, 0, 0, 0]
        >>> rolled(batch, batch.labels, by=2, fill=-100).tolist()
        [3, -100, -100, -100, -100, -100, -100, -100]
    """
    slots = batch.num_slots
    if x.shape[0] != slots:
        raise PadlessError(f"an array of shape {tuple(x.shape)} does not run over the batch's {slots:,} slots")
    if by < 0:
        raise PadlessError(f"by={by}: tokens are looked up ahead, by at least 0 places")
    out = _full_like(x, fill)
    if by >= slots:
        return out
    ids = batch.segment_ids
    inside = (ids[: slots - by] == ids[by:]) & (ids[by:] > 0)
    where = inside.nonzero()[0] if isinstance(inside, np.ndarray) else inside.nonzero().squeeze(1)
    if is_tensor(x) and not is_tensor(where):
        raise PadlessError("x is a tensor and the batch holds arrays; use batch.torch()")
    out[where] = x[where + by]
    return out


def _full_like(x: Any, fill: float) -> Any:
    return x.new_full(x.shape, fill) if is_tensor(x) else np.full_like(x, fill)
