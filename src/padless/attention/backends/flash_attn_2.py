"""flash-attn 2: `flash_attn_varlen_func`, and `flash_attn_func` when all segments have one length."""

import torch

from padless.attention.capability import HALF, Backend, Capability
from padless.attention.flash_calls import fixed_lse, fixed_view, varlen_lse
from padless.attention.installed import function, missing_on_cuda
from padless.attention.problem import Problem

_SHARED = ("q", "k", "v", "dropout_p", "softmax_scale", "causal", "window_size", "softcap", "deterministic")
_VARLEN = (*_SHARED, "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "return_attn_probs")


def run(p: Problem) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output and log-sum-exp."""
    options = {
        "dropout_p": p.dropout_p,
        "softmax_scale": p.scale,
        "causal": p.right == 0,
        "window_size": (-1 if p.left is None else p.left, -1 if p.right is None else p.right),
        "softcap": p.softcap,
        "deterministic": p.deterministic,
        "return_attn_probs": p.return_lse,
    }
    if p.segments.equal:
        kernel = function("flash_attn", "flash_attn_func", (*_SHARED, "return_attn_probs"))
        found = kernel(*fixed_view(p), **options)
        out, lse = found[:2] if p.return_lse else (found, None)
        return out.flatten(0, 1), fixed_lse(lse)
    kernel = function("flash_attn", "flash_attn_varlen_func", _VARLEN)
    found = kernel(
        p.q,
        p.k,
        p.v,
        cu_seqlens_q=p.segments.cu_seqlens("q", p.q.device),
        cu_seqlens_k=p.segments.cu_seqlens("k", p.q.device),
        max_seqlen_q=p.segments.max_q,
        max_seqlen_k=p.segments.max_k,
        **options,
    )
    out, lse = found[:2] if p.return_lse else (found, None)
    return out, varlen_lse(lse)


BACKEND = Backend(
    name="flash-attn-2",
    summary="flash-attn 2 (CUDA, Ampere and later)",
    capability=Capability(
        devices=("cuda",),
        dtypes=HALF,
        max_head_size=256,
        own_value_size=False,
        softcap=True,
        dropout=True,
    ),
    missing=lambda: missing_on_cuda("flash_attn.flash_attn_interface", "flash-attn"),
    run=run,
)
