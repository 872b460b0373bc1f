"""Varlen calls as block-diagonal biases of `xformers.ops.memory_efficient_attention`."""

import importlib.util
from typing import Any

from padless.errors import MissingExtraError, PadlessError
from padless.masks.calls import Call, varlen_calls
from padless.rows import Batch
from padless.rows.tensors import host


def xformers_biases(batch: Batch) -> list[Any]:
    """`attn_bias` for each of `varlen_calls(batch)`, whose indices gather `[1, N, H, D]` queries and keys.

    xformers counts a window with the query in it: `window_size = left + 1`. Causal blocks are aligned to the bottom
    right, by the classes that say so; `BlockDiagonalCausalMask` is aligned to the upper left and is never used here.

    Raises:
        PadlessError: For windows that are not causal, or as `varlen_calls`.
        MissingExtraError: Without xformers.

    Example:
        Where xformers is installed::

            for call, bias in zip(varlen_calls(batch), xformers_biases(batch)):
                out[:, call.q_index] = memory_efficient_attention(q[:, call.q_index], ..., attn_bias=bias)
    """
    if importlib.util.find_spec("xformers") is None:
        raise MissingExtraError(
            "xformers biases need xformers, which no extra of padless installs: each release fits one torch; "
            "pip install the one for yours"
        )
    from xformers.ops.fmha.attn_bias import BlockDiagonalMask

    return [_bias(BlockDiagonalMask, call, batch) for call in varlen_calls(batch)]


def _bias(block_diagonal: Any, call: Call, batch: Batch) -> Any:
    left, right = call.window
    if not call.causal and (left, right) != (-1, -1):
        raise PadlessError(
            f"{batch.rule} needs a window without causality ({left} to the left, {right} to the right), and xformers "
            "has no block-diagonal bias for it; use padless.masks.calls with flash-attn, flex or slices"
        )
    bias = block_diagonal.from_seqlens(_lengths(call.cu_seqlens_q), _lengths(call.cu_seqlens_k))
    if not call.causal:
        return bias
    if left < 0:
        return bias.make_causal_from_bottomright()
    return bias.make_local_attention_from_bottomright(left + 1)


def _lengths(cu_seqlens: Any) -> list[int]:
    offsets = host(cu_seqlens)
    return (offsets[1:] - offsets[:-1]).tolist()
