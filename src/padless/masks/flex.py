"""A rule in the language of FlexAttention: `mask_mod` functions and block masks. Every rule can be said in it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from padless.errors import require
from padless.masks.geometry import Tokens, attends, ranges, tokens_of, visibility_table
from padless.masks.slices import CAUSAL, INVERSE_CAUSAL, magi_slices
from padless.rows import Batch
from padless.rows.tensors import is_tensor, to_torch


def flex_mask_mod(batch: Batch) -> Callable[[Any, Any, Any, Any], Any]:
    """`mask_mod(b, h, q, kv) -> bool`, True = attend; indices are slots, and batch and head are not looked at.

    A padding slot attends nothing, for which FlexAttention gives 0. The tensors that the function reads lie on the
    batch's device; it is the same code for every batch of one rule, so that compiled kernels are reused.

    Raises:
        MissingExtraError: Without torch.

    Example:
        >>> from padless import collate
        >>> from torch.nn.attention.flex_attention import create_mask
        >>> create_mask(flex_mask_mod(collate([[1, 2], [3]])), 1, 1, 3, 3, device="cpu").int()[0, 0]
        tensor([[1, 0, 0],
                [1, 1, 0],
                [0, 0, 1]], dtype=torch.int32)
    """
    require("torch", extra="torch", feature="FlexAttention masks")
    device = batch.input_ids.device if is_tensor(batch.input_ids) else None
    tokens = [to_torch(values, device) for values in tokens_of(batch)]
    rule, table = batch.rule, visibility_table(batch)
    table = None if table is None else to_torch(table)

    def mask_mod(_b: Any, _h: Any, q: Any, kv: Any) -> Any:
        return attends(rule, Tokens(*(x[q] for x in tokens)), Tokens(*(x[kv] for x in tokens)), table)

    return mask_mod


def flex_block_mask(batch: Batch, block_size: int = 128) -> Any:
    """The `BlockMask` of `flex_attention(q, k, v, block_mask=...)` for `[1, H, T, D]` tensors.

    Make it once per batch and give it to every layer. It equals `create_block_mask(flex_mask_mod(batch), ...)`, which
    looks at all T x T pairs; here the pairs of each block are counted from `magi_slices`, in O(T) and (T / block)^2.

    Args:
        batch: Arrays (CPU) or tensors.
        block_size: Slots per block, the unit that is skipped or computed whole.

    Raises:
        MissingExtraError: Without torch.

    Example:
        >>> from padless import collate
        >>> flex_block_mask(collate([[1] * 8, [2] * 8]), block_size=4).to_dense().int()[0, 0]
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 0, 1, 0],
                [0, 0, 1, 1]], dtype=torch.int32)
    """
    mask_mod = flex_mask_mod(batch)
    from torch.nn.attention.flex_attention import BlockMask

    device = batch.input_ids.device if is_tensor(batch.input_ids) else None
    pairs = pairs_per_block(batch, block_size)
    full = pairs == block_size**2
    partial = (pairs > 0) & ~full
    blocks = [to_torch(values[None, None], device) for part in (partial, full) for values in _listed(part)]
    slots = batch.num_slots
    return BlockMask.from_kv_blocks(*blocks, BLOCK_SIZE=block_size, mask_mod=mask_mod, seq_lengths=(slots, slots))


def pairs_per_block(batch: Batch, block_size: int) -> np.ndarray:
    """int64[B, B]: how many pairs of a query and a key that it sees lie in each block of queries and keys.

    Example:
        >>> from padless import collate
        >>> pairs_per_block(collate([[1] * 4]), 2)
        array([[3, 0],
               [4, 3]])
    """
    q_ranges, k_ranges, kinds = (values.astype(np.int64) for values in magi_slices(batch))
    queries = np.diff(q_ranges)[:, 0]
    q = ranges(q_ranges[:, 0], queries)
    # The keys [first, last) of each query, by the type of its slice.
    from_top, from_bottom = ranges(np.zeros_like(queries), queries), np.repeat(q_ranges[:, 1], queries) - 1 - q
    kind = np.repeat(kinds, queries)
    first = np.repeat(k_ranges[:, 0], queries) + np.where(kind & INVERSE_CAUSAL, from_top, 0)
    last = np.repeat(k_ranges[:, 1], queries) - np.where(kind & CAUSAL, from_bottom, 0)

    count = -(-batch.num_slots // block_size)
    begin, end = first // block_size, (last - 1) // block_size
    row = q // block_size * (count + 1)

    def summed(column: np.ndarray, values: Any) -> np.ndarray:
        return np.bincount(row + column, np.broadcast_to(values, row.shape), minlength=count * (count + 1))

    # The first and the last block of a query hold what they hold; those between hold a block's width each.
    within = begin == end
    ends = summed(begin, np.where(within, last, (begin + 1) * block_size) - first)
    ends += summed(end, np.where(within, 0, last - end * block_size))
    steps = summed(begin + 1, np.where(within, 0, block_size)) - summed(end, np.where(within, 0, block_size))
    pairs = ends.reshape(count, -1) + np.cumsum(steps.reshape(count, -1), axis=1)
    return np.rint(pairs[:, :-1]).astype(np.int64)


def _listed(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many blocks each line has, and their numbers in front of all others: int32[B], int32[B, B]."""
    return blocks.sum(axis=1, dtype=np.int32), np.argsort(~blocks, axis=1, kind="stable").astype(np.int32)
