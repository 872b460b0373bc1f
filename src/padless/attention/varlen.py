"""`varlen_attention`: isolated attention for packed tokens, on the best kernel there is."""

import math
from typing import Any

import torch

from padless.attention import select
from padless.attention.problem import Problem
from padless.attention.segments import Segments
from padless.errors import PadlessError


def varlen_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    segments: Segments | Any = None,
    *,
    cu_seqlens: Any = None,
    cu_seqlens_k: Any = None,
    causal: bool | None = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    deterministic: bool = False,
    return_lse: bool = False,
    backend: str = "auto",
) -> Any:
    """Attention in which a token sees only its own segment.

    Args:
        q: Queries `[Tq, Hq, D]`; float64, float32, float16 or bfloat16; the last dimension contiguous, other strides free.
        k: Keys `[Tk, Hkv, D]`; `Hq` is a multiple of `Hkv` (grouped-query heads).
        v: Values `[Tk, Hkv, Dv]`.
        segments: A `Batch` (its boundaries and its rule are used) or `Segments`. Make it once and hand it to every
            layer: plans and device copies are kept on it.
        cu_seqlens: Boundaries by hand, instead of `segments`: prefix sums of the query lengths, `[S + 1]`.
        cu_seqlens_k: The same for keys when they differ; the causal mask is then aligned to the bottom right.
        causal: Whether a token sees only what comes before it; True unless the batch's rule says otherwise.
        window: `(left, right)` distances still visible, as in flash-attn; None is no limit. Causal sets right to 0.
        scale: Multiplies the scores; `1 / sqrt(D)` by default.
        softcap: `softcap * tanh(score / softcap)` replaces each score; 0 is off (Gemma 2).
        sinks: One extra logit per query head that takes part in each softmax and has no value; `[Hq]` (GPT-OSS).
        dropout_p: Probability of dropping an attention weight; the default 0.0 is right outside training.
        deterministic: Ask for gradients with the same bits in every run.
        return_lse: Also return the log of each softmax's denominator (sink included), `[Tq, Hq]`, float32 or wider;
            no gradient flows through it.
        backend: `"auto"`, or a name from `padless backends`.

    Returns:
        `[Tq, Hq, Dv]` in q's dtype, or `(out, lse)`. Padding positions are 0 (lse: -inf) and get zero gradients, and
        so do queries that see no key.

    Raises:
        PadlessError: For inputs that do not fit together, or when no backend can do what is asked: the message says
            which requirement failed in which backend.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 8, 4, 16).unbind()
        >>> out = varlen_attention(q, k, v, cu_seqlens=[0, 3, 8])
        >>> alone = varlen_attention(q[3:], k[3:], v[3:], cu_seqlens=[0, 5])
        >>> torch.allclose(out[3:], alone, atol=1e-6)
        True
    """
    where = _segments(segments, cu_seqlens, cu_seqlens_k)
    left, right = window if window is not None else (None, None)
    if causal or causal is None:
        right = 0
    problem = Problem(
        q=q,
        k=k,
        v=v,
        segments=where,
        left=left,
        right=right,
        scale=1.0 / math.sqrt(q.shape[-1]) if scale is None else scale,
        softcap=softcap,
        sinks=sinks,
        dropout_p=dropout_p,
        deterministic=deterministic,
        return_lse=return_lse,
    )
    out, lse = select.run(problem, backend)
    return (out, lse) if return_lse else out


def _segments(segments: Any, cu_seqlens: Any, cu_seqlens_k: Any) -> Segments:
    """The one description of boundaries that was given."""
    if (segments is None) == (cu_seqlens is None):
        raise PadlessError("give the boundaries once: a batch (or Segments), or cu_seqlens")
    if segments is None:
        return Segments.of(cu_seqlens, cu_seqlens_k)
    if isinstance(segments, Segments):
        return segments
    raise PadlessError(f"cannot read boundaries from a {type(segments).__name__}")
