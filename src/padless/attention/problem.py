"""One attention problem: everything a backend is asked to compute, already checked."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from padless.attention.segments import Segments
from padless.errors import PadlessError

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Query `i` of a segment with `nq` queries and `nk` keys sees key `j` iff `-left <= j - (i + nk - nq) <= right`.

    That is flash-attn's definition: windows and the causal mask are aligned to the bottom right, so a decoding query
    sees all keys before it. Causal is `right = 0`; None is no limit.

    Attributes:
        q: `[Tq, Hq, D]`.
        k: `[Tk, Hkv, D]`.
        v: `[Tk, Hkv, Dv]`.
        segments: Who belongs to whom.
        left: Keys visible before the diagonal.
        right: Keys visible after it.
        scale: Multiplies the scores.
        softcap: `softcap * tanh(score / softcap)` replaces each score; 0 is off.
        sinks: One extra logit per query head that takes part in the softmax and has no value; `[Hq]`.
        dropout_p: Probability of dropping an attention weight.
        deterministic: Whether gradients must be the same bits in every run.
        return_lse: Whether the log of each softmax's denominator is wanted.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    segments: Segments
    left: int | None = None
    right: int | None = None
    scale: float
    softcap: float = 0.0
    sinks: torch.Tensor | None = None
    dropout_p: float = 0.0
    deterministic: bool = False
    return_lse: bool = False

    def __post_init__(self) -> None:
        check_tensors(self.q, self.k, self.v)
        _check_slots(self.segments, self.q, self.k)
        _check_options(self)

    @property
    def causal(self) -> bool:
        """Whether no query sees a later key, and none is too far back."""
        return self.right == 0 and self.left is None

    @property
    def windowed(self) -> bool:
        """Whether distance limits sight beyond the causal mask."""
        return self.left is not None or self.right not in (None, 0)

    @property
    def needs_grad(self) -> bool:
        """Whether a backward pass will be asked for."""
        tensors = [self.q, self.k, self.v, *([self.sinks] if self.sinks is not None else [])]
        return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def visible(nq: int, nk: int, left: int | None, right: int | None) -> np.ndarray:
    """Who sees whom inside one segment; bool `[nq, nk]`.

    Example:
        >>> visible(2, 3, None, 0).astype(int)
        array([[1, 1, 0],
               [1, 1, 1]])
    """
    distance = np.arange(nk)[None, :] - (np.arange(nq)[:, None] + nk - nq)
    seen = np.ones((nq, nk), bool)
    if right is not None:
        seen &= distance <= right
    if left is not None:
        seen &= distance >= -left
    return seen


def check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise PadlessError unless q, k and v are packed tensors that fit together."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != 3:
            raise PadlessError(
                f"{name} has shape {tuple(tensor.shape)}: packed attention takes [tokens, heads, head size]; "
                "flatten a [batch, length, heads, size] tensor first"
            )
        if tensor.dtype not in DTYPES:
            raise PadlessError(f"{name} is {tensor.dtype}: attention takes float64, float32, float16 or bfloat16")
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise PadlessError(
                f"q is {q.dtype} on {q.device} but {name} is {tensor.dtype} on {tensor.device}: all three must agree"
            )
        if tensor.numel() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise PadlessError(
                f"{name} has strides {tensor.stride()}: the head-size dimension must be contiguous (stride 1), or "
                "kernels would copy the tensor in every layer; call .contiguous() once, or transpose less"
            )
    if k.shape[:2] != v.shape[:2]:
        raise PadlessError(f"k has shape {tuple(k.shape)} and v {tuple(v.shape)}: tokens and heads must agree")
    if q.shape[2] != k.shape[2]:
        raise PadlessError(f"q has head size {q.shape[2]} and k {k.shape[2]}: they must agree")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1] or 0 in (q.shape[2], v.shape[2]):
        raise PadlessError(
            f"q has {q.shape[1]} heads of {q.shape[2]} and k, v have {k.shape[1]} of {k.shape[2]}, {v.shape[2]}: query "
            "heads must be a multiple of key heads, and no size may be 0"
        )


def _check_slots(segments: Segments, q: torch.Tensor, k: torch.Tensor) -> None:
    for name, slots, tensor in (("q", segments.q_slots, q), ("k", segments.k_slots, k)):
        if slots != tensor.shape[0]:
            raise PadlessError(
                f"the offsets describe {slots} slots but {name} has {tensor.shape[0]}: the tokens beyond would get no "
                "attention; give offsets of this very batch, and name padding by padded offsets or slots"
            )


def _check_options(p: Problem) -> None:
    for name, limit in (("left", p.left), ("right", p.right)):
        if limit is not None and limit < 0:
            raise PadlessError(f"window {name} is {limit}: give a distance of 0 or more, or None for no limit")
    if not 0.0 <= p.dropout_p < 1.0:
        raise PadlessError(f"dropout_p is {p.dropout_p}: it must be at least 0 and below 1")
    if not 0.0 <= p.softcap < math.inf:
        raise PadlessError(f"softcap is {p.softcap}: it must be positive, or 0 for none")
    if not 0.0 < p.scale < math.inf:
        raise PadlessError(
            f"scale is {p.scale}: it must be positive; kernels hide scores by -inf times the scale, so any other gives "
            "NaN or lets every token see what is hidden"
        )
    if p.sinks is not None and p.sinks.shape != (p.q.shape[1],):
        raise PadlessError(f"sinks has shape {tuple(p.sinks.shape)}: one per query head is [{p.q.shape[1]}]")
