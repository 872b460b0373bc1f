"""Transformer Engine: `DotProductAttention` in THD layout."""

import functools
from typing import Any

import torch

from padless.attention.capability import HALF, Backend, Capability
from padless.attention.installed import check, function, missing_on_cuda, version
from padless.attention.problem import Problem

_MODULE = "transformer_engine.pytorch"
_MAKE = (
    *("num_attention_heads", "kv_channels", "num_gqa_groups", "attention_dropout", "qkv_format"),
    *("attn_mask_type", "softmax_scale"),
)
_CALL = (
    *("query_layer", "key_layer", "value_layer", "qkv_format", "cu_seqlens_q", "cu_seqlens_kv"),
    *("max_seqlen_q", "max_seqlen_kv", "attn_mask_type", "window_size"),
)


def run(p: Problem) -> tuple[torch.Tensor, None]:
    """Output; the module holds no parameters and is kept per configuration."""
    sizes = p.q.shape[2] if p.q.shape[2] == p.v.shape[2] else (p.q.shape[2], p.v.shape[2])
    module = _module(p.q.shape[1], sizes, p.k.shape[1], p.dropout_p, p.scale)
    causal = p.right == 0
    out = module(
        p.q,
        p.k,
        p.v,
        qkv_format="thd",
        cu_seqlens_q=p.segments.cu_seqlens("q", p.q.device),
        cu_seqlens_kv=p.segments.cu_seqlens("k", p.q.device),
        max_seqlen_q=p.segments.max_q,
        max_seqlen_kv=p.segments.max_k,
        attn_mask_type="padding_causal_bottom_right" if causal else "padding",
        window_size=(-1 if p.left is None else p.left, 0 if causal else -1 if p.right is None else p.right),
    )
    return out.unflatten(-1, (p.q.shape[1], p.v.shape[2])), None


@functools.lru_cache(maxsize=32)
def _module(heads: int, sizes: Any, groups: int, dropout_p: float, scale: float) -> Any:
    kind = function(_MODULE, "DotProductAttention", _MAKE)
    check(kind.forward, f"{_MODULE}.DotProductAttention.forward", version(_MODULE), _CALL)
    return kind(
        heads,
        sizes,
        num_gqa_groups=groups,
        attention_dropout=dropout_p,
        qkv_format="thd",
        attn_mask_type="padding",
        softmax_scale=scale,
    )


BACKEND = Backend(
    name="transformer-engine",
    summary="Transformer Engine DotProductAttention, THD (CUDA)",
    capability=Capability(
        devices=("cuda",), dtypes=HALF, max_head_size=256, dropout=True, deterministic=False, lse=False
    ),
    missing=lambda: missing_on_cuda(_MODULE, "transformer-engine"),
    run=run,
)
