"""A rule in the language of FlexAttention: `mask_mod` functions and block masks. Every rule can be said in it."""

from collections.abc import Callable
from typing import Any

from padless.errors import require
from padless.masks.geometry import Tokens, attends, tokens_of, visibility_table
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

    Make it once per batch and give it to every layer: building it looks at all T x T pairs, on the batch's device.

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
    from torch.nn.attention.flex_attention import create_block_mask

    device = batch.input_ids.device if is_tensor(batch.input_ids) else "cpu"
    slots = batch.num_slots
    return create_block_mask(mask_mod, None, None, slots, slots, device=device, BLOCK_SIZE=block_size)
