"""Fixed-shape kernels under the segmented path: forward and backward of one group of pieces, no autograd.

Both compute `[n, H, nq, D] x [n, Hkv, nk, D]` and share one contract. `backward` recomputes the weights from the
log-sum-exp it is given, so a caller may hand it one that counts more than the group's own keys (attention sinks do).
"""

from dataclasses import dataclass
from typing import Protocol

import torch

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

Grads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a group's scores go through.

    Attributes:
        scale: Multiplies the scores.
        softcap: 0 is off.
        causal: The plain triangle, `nq == nk`.
        seen: Who sees whom, bool, broadcast to `[n, H, nq, nk]`; None when `causal`, or when all is seen.
    """

    scale: float
    softcap: float = 0.0
    causal: bool = False
    seen: torch.Tensor | None = None


class Kernel(Protocol):
    """Forward and backward of one group."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: Spec
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output `[n, H, nq, Dv]` and log-sum-exp `[n, H, nq]`."""
        ...

    def backward(
        self,
        grad: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        spec: Spec,
    ) -> Grads:
        """Gradients of q, k and v, in their shapes."""
        ...


class FlashCpu:
    """torch's own CPU flash kernel, called directly: it takes strided views and never writes its scores out.

    It wants the same head size everywhere, so callers pad v; it divides by the lengths, so callers keep empty pieces
    away (it kills the process on them).
    """

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: Spec
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `Kernel.forward`."""
        return _flash(q, k, v, 0.0, spec.causal, attn_mask=_bias(spec, q), scale=spec.scale)

    def backward(
        self,
        grad: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        spec: Spec,
    ) -> Grads:
        """As `Kernel.backward`."""
        return _flash_backward(grad, q, k, v, out, lse, 0.0, spec.causal, attn_mask=_bias(spec, q), scale=spec.scale)


class Written:
    """Scores written out with plain matrix products: any device, any head sizes, softcap; memory `n * H * nq * nk`."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: Spec
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `Kernel.forward`."""
        scores, _ = _scores(_by_group(_wide(q), k.shape[1]), _wide(k)[:, :, None], spec)
        lse = torch.logsumexp(scores, dim=-1)
        out = torch.exp(scores - lse[..., None]) @ _wide(v)[:, :, None]
        return out.flatten(1, 2).to(q.dtype), lse.flatten(1, 2)

    def backward(
        self,
        grad: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        spec: Spec,
    ) -> Grads:
        """As `Kernel.backward`."""
        kv = k.shape[1]
        qg, gg, og = (_by_group(_wide(x), kv) for x in (q, grad, out))
        kw, vw = _wide(k)[:, :, None], _wide(v)[:, :, None]
        scores, slope = _scores(qg, kw, spec)
        weights = torch.exp(scores - _by_group(lse, kv)[..., None].to(scores.dtype))
        grad_v = (weights.mT @ gg).sum(2)
        grad_scores = weights * (gg @ vw.mT - (gg * og).sum(-1, keepdim=True)) * (slope * spec.scale)
        grad_q = (grad_scores @ kw).flatten(1, 2)
        grad_k = (grad_scores.mT @ qg).sum(2)
        return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype)


def _wide(x: torch.Tensor) -> torch.Tensor:
    """Half precisions are computed in float32."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _by_group(x: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """`[n, H, ...]` to `[n, Hkv, H / Hkv, ...]`: query heads beside the key head they share."""
    return x.unflatten(1, (kv_heads, x.shape[1] // kv_heads))


def _scores(q: torch.Tensor, k: torch.Tensor, spec: Spec) -> tuple[torch.Tensor, torch.Tensor | float]:
    """Capped and masked scores, and the slope of the cap at each."""
    scores = (q @ k.mT) * spec.scale
    slope: torch.Tensor | float = 1.0
    if spec.softcap:
        squashed = torch.tanh(scores / spec.softcap)
        scores, slope = spec.softcap * squashed, 1.0 - squashed.square()
    if spec.causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    if spec.seen is not None:
        seen = spec.seen if spec.seen.ndim < 4 else spec.seen[:, :, None]
        scores = scores.masked_fill(~seen, -torch.inf)
    return scores, slope


def _bias(spec: Spec, q: torch.Tensor) -> torch.Tensor | None:
    """The flash kernel takes a mask as something to add."""
    if spec.seen is None:
        return None
    bias = torch.zeros(spec.seen.shape, dtype=q.dtype).masked_fill_(~spec.seen, -torch.inf)
    return bias.view(*(1,) * (4 - bias.ndim), *bias.shape)
