"""Models of one expert with openpi's block mask (pi0-FAST's prefix-LM): a padded batch to a `Batch` of real tokens."""

from typing import Any

import numpy as np

from padless.errors import PadlessError
from padless.rows import Batch, Rule, batch_from_segments
from padless.rows.tensors import host


def block_rows(real: Any, starts: Any, *, tokens: Any = None, targets: Any = None) -> tuple[Batch, np.ndarray]:
    """The real tokens of a padded batch, and where they lie in it.

    Args:
        real: bool[B, L], True where a slot is no padding (openpi's `input_mask`).
        starts: int[B, L] or int[L], 1 where a token begins a block that earlier tokens must not see (`mask_ar`): 0 for
            images and prompt, 1 for every FAST token.
        tokens: int[B, L], token ids for `input_ids`; None: zeros, as image slots have none.
        targets: bool[B, L], True on targets (`token_loss_mask`); None: no targets.

    Returns:
        `(batch, index)`: one segment per sample under a block-causal rule, whose positions are `cumsum(real) - 1`; and
        int64[T], the padded slot `[B * L]` of each of its tokens. `varlen_attention(q, k, v, batch)` then makes two
        plain calls for a prefix-LM.

    Raises:
        PadlessError: When shapes disagree, or a sample has no real token.

    Source:
        openpi `models/pi0_fast.py`, `make_attn_mask`.

    Example:
        >>> batch, index = block_rows([[1, 1, 1, 0], [1, 1, 1, 1]], [0, 0, 1, 1])
        >>> batch, index
        (Batch(1 row, 2 segments, 7 tokens in 7 slots, 0 targets, block-causal), array([0, 1, 2, 4, 5, 6, 7]))
        >>> batch.ranks
        array([0, 0, 1, 0, 0, 1, 2], dtype=int32)
    """
    there = np.asarray(host(real)).astype(bool)
    if there.ndim != 2:
        raise PadlessError(f"real must be [samples, slots], not of shape {there.shape}")
    begins = np.asarray(host(starts)).astype(np.int64)
    if begins.shape not in (there.shape, there.shape[1:]):
        raise PadlessError(f"starts has shape {begins.shape} beside masks of {there.shape}")
    lengths = there.sum(axis=1)
    if (lengths == 0).any():
        raise PadlessError(f"sample {int(np.argmax(lengths == 0))} has no real token; drop and count it")
    ranks = np.broadcast_to(begins, there.shape).cumsum(axis=1)
    index = np.flatnonzero(there)

    def packed(x: Any, dtype: Any) -> np.ndarray:
        return np.zeros(len(index), dtype) if x is None else np.asarray(host(x)).reshape(-1)[index].astype(dtype)

    batch = batch_from_segments(
        packed(tokens, np.int64),
        packed(targets, bool),
        lengths,
        rule=Rule(kind="block-causal"),
        blocks=ranks.reshape(-1)[index].astype(np.int32),
        sample_ids=np.arange(len(there)),
    )
    return batch, index
