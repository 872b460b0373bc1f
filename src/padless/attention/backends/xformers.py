"""xformers: `memory_efficient_attention` with block-diagonal biases."""

import importlib
from typing import Any

import torch

from padless.attention.capability import Backend, Capability
from padless.attention.flash_calls import repeated_heads
from padless.attention.installed import function, missing_on_cuda
from padless.attention.problem import Problem

_ARGUMENTS = ("query", "key", "value", "attn_bias", "p", "scale")


def run(p: Problem) -> tuple[torch.Tensor, None]:
    """Output; grouped-query heads are repeated, for its own grouping has no backward."""
    kernel = function("xformers.ops", "memory_efficient_attention", _ARGUMENTS)
    k, v = repeated_heads(p)
    out = kernel(p.q[None], k[None], v[None], attn_bias=_bias(p), p=p.dropout_p, scale=p.scale)
    return out[0], None


def _bias(p: Problem) -> Any:
    """Who sees whom, made once per batch and shared by the layers."""
    key = ("xformers", p.left, p.right, p.q.device)
    if key not in p.segments.cache:
        import xformers.ops.fmha.attn_bias as biases  # type: ignore[import-not-found]

        q, k = p.segments.q_lengths.tolist(), p.segments.k_lengths.tolist()
        bias = biases.BlockDiagonalMask.from_seqlens(q, k, device=p.q.device)
        if p.right == 0:
            bias = bias.make_causal_from_bottomright()
            if p.left is not None:
                bias = bias.make_local_attention_from_bottomright(p.left + 1)
        p.segments.cache[key] = bias
    return p.segments.cache[key]


def _missing() -> str | None:
    reason = missing_on_cuda("xformers.ops", "xformers", capability=(7, 0))
    if reason is not None:
        return reason
    # Its operators call themselves available without this, and refuse every call.
    built = getattr(importlib.import_module("xformers._cpp_lib"), "_built_with_cuda", True)
    return None if built else "xformers is here without its CUDA kernels: it was built for another PyTorch"


BACKEND = Backend(
    name="xformers",
    summary="xformers memory-efficient attention (CUDA)",
    capability=Capability(
        devices=("cuda",),
        dtypes=(torch.float32, torch.float16, torch.bfloat16),
        two_sided=False,
        dropout=True,
        deterministic=False,
        lse=False,
        more_queries=False,
    ),
    missing=_missing,
    run=run,
)
