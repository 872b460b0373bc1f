"""Varlen calls as `torch.nn.attention.varlen.varlen_attn` takes them (PyTorch 2.10 and later, CUDA, fp16 and bf16)."""

import inspect
from typing import Any

from padless.errors import PadlessError, require
from padless.masks.calls import varlen_calls
from padless.rows import Batch
from padless.rows.tensors import to_torch


def torch_varlen_kwargs(batch: Batch) -> list[dict[str, Any]]:
    """Keyword arguments of `varlen_attn` for each of `varlen_calls(batch)`, in the spelling of the installed PyTorch.

    PyTorch says causal as `window_size=(-1, 0)` and a window of the W tokens before a query as `(W, 0)`; 2.10 says
    `is_causal=True` and knows no window. Both align to the bottom right. Queries and keys are gathered by the indices
    of the calls, which stay with the caller: `zip(varlen_calls(batch), torch_varlen_kwargs(batch))`.

    Args:
        batch: Of tensors, on the device where attention runs; arrays become tensors on the CPU.

    Raises:
        MissingExtraError: Without torch.
        PadlessError: When the installed PyTorch has no `varlen_attn`, or it knows no windows and the rule has one; or
            as `varlen_calls`.

    Example:
        >>> from padless import Rule, collate
        >>> batch = collate([[1, 2, 3], [4, 5]], rule=Rule(window=(127, None)))
        >>> [kwargs] = torch_varlen_kwargs(batch)
        >>> kwargs["cu_seq_q"], kwargs["max_q"], kwargs["window_size"]
        (tensor([0, 3, 5], dtype=torch.int32), 3, (127, 0))
    """
    require("torch", extra="torch", feature="torch varlen arguments")
    import torch.nn.attention

    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise PadlessError(
            f"torch {torch.__version__} has no torch.nn.attention.varlen (2.10 and later have it); use "
            "padless.masks.flex, dense, or calls with flash-attn"
        ) from error
    windows = "window_size" in inspect.signature(varlen_attn).parameters
    if batch.rule.window is not None and not windows:
        raise PadlessError(
            f"{batch.rule} has a window, and varlen_attn of torch {torch.__version__} knows none; use "
            "padless.masks.flex, or calls with flash-attn, or a later PyTorch"
        )
    return [
        {
            "cu_seq_q": to_torch(call.cu_seqlens_q),
            "cu_seq_k": to_torch(call.cu_seqlens_k),
            "max_q": call.max_seqlen_q,
            "max_k": call.max_seqlen_k,
            **({"window_size": call.window} if windows else {"is_causal": call.causal}),
        }
        for call in varlen_calls(batch)
    ]
