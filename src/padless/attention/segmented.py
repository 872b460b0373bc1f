"""Segment by segment on a fixed-shape kernel: the path for CPUs, MPS and GPUs without a varlen kernel.

One autograd function runs the whole batch. Its forward and backward hand strided views of the packed tensors to the
kernel and write results straight into packed buffers, so there is no mask over the row, no copy per segment and no
autograd node per segment (slicing under autograd would make every segment's backward as large as the row).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from padless.attention.groups import Group, group
from padless.attention.kernels import FlashCpu, Kernel, Spec, Written
from padless.attention.pieces import BAND, cut
from padless.attention.problem import Problem


def run(p: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """Output `[Tq, Hq, Dv]` and log-sum-exp `[Tq, Hq]`; padding gives 0 and -inf."""
    return _Segmented.apply(p.q, p.k, p.v, p.sinks, p)


def _kernel(p: Problem) -> Kernel:
    """The flash kernel where it exists and can do it, plain matrix products elsewhere."""
    return FlashCpu() if p.q.device.type == "cpu" and not p.softcap else Written()


def _plan(p: Problem, kernel: Kernel) -> list[Group]:
    """Groups of this batch, made by the first layer that asks and kept for the others."""
    longest = BAND if isinstance(kernel, Written) else None
    key = ("segmented", p.left, p.right, longest, p.q.device)
    if key not in p.segments.cache:
        p.segments.cache[key] = group(cut(p.segments, p.left, p.right, longest=longest), p.q.device)
    return p.segments.cache[key]


def _padded_values(p: Problem, kernel: Kernel, v: torch.Tensor) -> torch.Tensor:
    """The flash kernel wants values as wide as keys (multi-head latent attention has narrower ones)."""
    missing = p.q.shape[2] - v.shape[2]
    if missing == 0 or isinstance(kernel, Written):
        return v
    return F.pad(v, (0, missing))


def _forward(p: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    kernel = _kernel(p)
    v = _padded_values(p, kernel, v)
    out = torch.zeros(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype, device=q.device)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    lse = torch.full(q.shape[:2], -torch.inf, dtype=wide, device=q.device)
    for g in _plan(p, kernel):
        spec = Spec(scale=p.scale, softcap=p.softcap, causal=g.causal, seen=g.seen)
        o, m = kernel.forward(g.q.take(q), g.k.take(k), g.k.take(v), spec)
        g.q.put(out, o)
        g.q.put(lse[..., None], m[..., None])
    return out[..., : p.v.shape[2]], lse


def _backward(
    p: Problem,
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    kernel = _kernel(p)
    width = v.shape[2]
    v, out, grad = (_padded_values(p, kernel, x) for x in (v, out, grad))
    grad_q, grad_k, grad_v = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    for g in _plan(p, kernel):
        spec = Spec(scale=p.scale, softcap=p.softcap, causal=g.causal, seen=g.seen)
        taken = (g.q.take(grad), g.q.take(q), g.k.take(k), g.k.take(v), g.q.take(out))
        dq, dk, dv = kernel.backward(*taken, g.q.take(lse[..., None])[..., 0], spec)
        g.q.put(grad_q, dq)
        write = g.k.add if g.shared_keys else g.k.put
        write(grad_k, dk)
        write(grad_v, dv)
    return grad_q, grad_k, grad_v[..., :width]


class _Segmented(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None, p: Problem
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = _forward(p, q, k, v)
        if sinks is not None:
            out, lse = _with_sinks(out, lse, sinks)
        ctx.save_for_backward(q, k, v, sinks, out, lse)
        ctx.problem = p
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, sinks, out, lse = ctx.saved_tensors
        grad = grads[0]
        if grad.stride(-1) != 1:
            grad = grad.contiguous()
        grad_q, grad_k, grad_v = _backward(ctx.problem, grad, q, k, v, out, lse)
        grad_sinks = None if sinks is None else _sinks_grad(grad, out, lse, sinks)
        return grad_q, grad_k, grad_v, grad_sinks, None


def _with_sinks(
    out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A sink takes its share of every softmax; handing the backward this output and log-sum-exp makes it exact."""
    total = torch.logaddexp(lse, sinks.to(lse.dtype))
    share = torch.exp(lse - total)
    return (out * share[..., None]).to(out.dtype), total


def _sinks_grad(
    grad: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor
) -> torch.Tensor:
    """The sink's weight times minus the value it displaces, summed over queries."""
    weight = torch.exp(sinks.to(lse.dtype) - lse)
    return -(weight * (grad.to(lse.dtype) * out.to(lse.dtype)).sum(-1)).sum(0).to(sinks.dtype)
