"""flash-attn 4, in CuTe DSL, for Hopper and Blackwell: `flash_attn.cute.flash_attn_varlen_func`."""

from typing import Any

import torch

from padless.attention.capability import HALF, Backend, Capability
from padless.attention.flash_calls import fixed_lse, fixed_view, varlen_lse
from padless.attention.installed import function, missing_on_cuda
from padless.attention.problem import Problem

_MODULE = "flash_attn.cute"
_SHARED = (
    *("q", "k", "v", "softmax_scale", "causal", "window_size", "learnable_sink", "softcap"),
    *("deterministic", "return_lse"),
)
_VARLEN = (*_SHARED, "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")


def run(p: Problem) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output and log-sum-exp."""
    options: dict[str, Any] = {
        "softmax_scale": p.scale,
        "causal": p.causal,
        "window_size": (p.left, p.right) if p.windowed else (None, None),
        "learnable_sink": p.sinks,
        "softcap": p.softcap,
        "deterministic": p.deterministic,
        "return_lse": p.return_lse,
    }
    if p.segments.equal:
        out, lse = _pair(function(_MODULE, "flash_attn_func", _SHARED)(*fixed_view(p), **options))
        return out.flatten(0, 1), fixed_lse(lse) if p.return_lse else None
    kernel = function(_MODULE, "flash_attn_varlen_func", _VARLEN)
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
    out, lse = _pair(found)
    return out, varlen_lse(lse) if p.return_lse else None


def _pair(found: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """It returns `(out, lse)` in every case; lse is None unless asked for or needed by backward."""
    return found if isinstance(found, tuple) else (found, None)


BACKEND = Backend(
    name="flash-attn-4",
    summary="flash-attn 4, CuTe (CUDA, Hopper and Blackwell)",
    capability=Capability(devices=("cuda",), dtypes=HALF, max_head_size=128, head_multiple=8, softcap=True, sinks=True),
    missing=lambda: missing_on_cuda(_MODULE, "flash-attn 4 (flash_attn.cute)", capability=(9, 0)),
    run=run,
)
