"""PyTorch's own `torch.nn.attention.varlen.varlen_attn` (2.10 and later, CUDA), feature-detected by its signature."""

import functools
import inspect
from typing import Any

import torch

from padless.attention.capability import HALF, Backend, Capability
from padless.attention.flash_calls import fixed_view, repeated_heads, varlen_lse
from padless.attention.installed import function, missing_on_cuda
from padless.attention.problem import Problem

_MODULE = "torch.nn.attention.varlen"
_ARGUMENTS = ("query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k", "return_aux", "scale", "window_size")


def run(p: Problem) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output and log-sum-exp; equal segments without a window go to SDPA's fixed-length kernel."""
    if p.segments.equal and not p.windowed and not p.return_lse and (p.right is None or p.segments.square):
        return _fixed(p), None
    kernel = function(_MODULE, "varlen_attn", _ARGUMENTS)
    grouped = "enable_gqa" in inspect.signature(kernel).parameters
    k, v = (p.k, p.v) if grouped else repeated_heads(p)
    options: dict[str, Any] = {"enable_gqa": p.q.shape[1] != p.k.shape[1]} if grouped else {}
    if p.return_lse:
        options["return_aux"] = function(_MODULE, "AuxRequest", ("lse",))(lse=True)
    found = kernel(
        p.q,
        k,
        v,
        p.segments.cu_seqlens("q", p.q.device),
        p.segments.cu_seqlens("k", p.q.device),
        p.segments.max_q,
        p.segments.max_k,
        scale=p.scale,
        window_size=(-1 if p.left is None else p.left, -1 if p.right is None else p.right),
        **options,
    )
    return (found[0], varlen_lse(found[1])) if p.return_lse else (found, None)


def _fixed(p: Problem) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2) for x in fixed_view(p))
    call = functools.partial(torch.nn.functional.scaled_dot_product_attention, is_causal=p.right == 0, scale=p.scale)
    return call(q, k, v, enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2).flatten(0, 1)


BACKEND = Backend(
    name="torch-varlen",
    summary="torch.nn.attention.varlen (CUDA, PyTorch 2.10 and later)",
    capability=Capability(devices=("cuda",), dtypes=HALF, max_head_size=256, own_value_size=False, deterministic=False),
    missing=lambda: missing_on_cuda(_MODULE, "torch.nn.attention.varlen"),
    run=run,
)
