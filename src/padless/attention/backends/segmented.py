"""Segment by segment on a fixed-shape kernel: the path for CPUs, MPS and GPUs without a varlen kernel.

One autograd function runs the whole batch. Its forward and backward hand views of the packed tensors to the kernel
and write results straight into packed buffers, so there is no mask over the row, no copy per segment and no autograd
node per segment (slicing under autograd would make every segment's backward as large as the row). Very short segments
are copied into padded batches, because a call costs more than a copy there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from padless.attention import autocast, cost, lanes
from padless.attention.capability import Backend, Capability, always
from padless.attention.groups import Group, Plan, plan
from padless.attention.kernels import FlashCpu, Grads, Kernel, Spec, Written
from padless.attention.pieces import BAND, cut
from padless.attention.problem import Problem
from padless.attention.segments import Segments

# Below this many keys the flash kernel is slower in bfloat16 than in float32, its backward by up to nine times.
WIDEN_BELOW = 256


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """What forward and backward share besides tensors.

    Attributes:
        segments: Whose segments.
        plan: The kernel calls.
        kernel: Who computes them.
        scale: Multiplies the scores.
        softcap: 0 is off.
    """

    segments: Segments
    plan: Plan
    kernel: Kernel
    scale: float
    softcap: float

    def spec(self, group: Group) -> Spec:
        """What the scores of one group go through."""
        return Spec(scale=self.scale, softcap=self.softcap, causal=group.causal, seen=group.seen)


def run(p: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """Output `[Tq, Hq, Dv]` and log-sum-exp `[Tq, Hq]`; padding gives 0 and -inf."""
    return Attention.apply(p.q, p.k, p.v, p.sinks, job(p))


def job(p: Problem) -> Job:
    """The plan of this batch, made by the first layer that asks and kept on its segments for the others."""
    kernel: Kernel = FlashCpu() if p.q.device.type == "cpu" and not p.softcap else Written()
    heads = p.q.shape[1] * p.q.shape[2] / 64
    key = ("segmented", p.left, p.right, type(kernel), heads, p.q.device)
    if key not in p.segments.cache:
        pieces = cut(p.segments, p.left, p.right, longest=BAND if isinstance(kernel, Written) else None)
        slots = (p.segments.q_slots, p.segments.k_slots)
        p.segments.cache[key] = plan(pieces, slots, heads, cost.machine(p.q.device.type)["segmented"], p.q.device)
    return Job(segments=p.segments, plan=p.segments.cache[key], kernel=kernel, scale=p.scale, softcap=p.softcap)


def forward(
    job: Job, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of a whole batch."""
    plan, width = job.plan, v.shape[2]
    q, k, v = _one_width(job.kernel, q, k, v)
    make = torch.empty if plan.covers_q else torch.zeros
    out = make(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype, device=q.device)
    lse = _empty_lse(job, q, sinks)

    def compute(g: Group) -> None:
        found, found_lse = _forward_group(job, g, (q, k, v), sinks)
        g.q.put(out, found)
        g.q.put(lse[..., None], found_lse[..., None])

    lanes.run([(g.cost, partial(compute, g)) for g in plan.groups], q.device)
    return out[..., :width], lse


def backward(
    job: Job, grad: torch.Tensor, tensors: Sequence[torch.Tensor], lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v for a whole batch; `tensors` are q, k, v and the output."""
    plan, widths = job.plan, (tensors[0].shape[2], tensors[2].shape[2])
    q, k, v, out, grad = _one_width(job.kernel, *tensors, grad)
    half = q.dtype in (torch.bfloat16, torch.float16)
    summed = torch.float32 if plan.shared_keys and half else q.dtype
    make_q = torch.empty if plan.covers_q else torch.zeros
    make_k = torch.empty if plan.covers_k else torch.zeros
    grad_q = make_q(q.shape, dtype=q.dtype, device=q.device)
    grad_k, grad_v = (make_k(x.shape, dtype=summed, device=q.device) for x in (k, v))

    def compute(g: Group) -> None:
        found = _backward_group(job, g, (grad, q, k, v, out), lse)
        g.q.put(grad_q, found[0])
        for into, x in zip((grad_k, grad_v), found[1:], strict=True):
            if g.shared_keys:
                g.k.take(into).add_(x)  # a view: pieces that share keys are never copied together
            else:
                g.k.put(into, x)

    for g in plan.groups:
        if g.shared_keys:
            compute(g)
    lanes.run([(g.cost, partial(compute, g)) for g in plan.groups if not g.shared_keys], q.device)
    return grad_q[..., : widths[0]], grad_k.to(k.dtype)[..., : widths[0]], grad_v.to(v.dtype)[..., : widths[1]]


def _forward_group(
    job: Job, g: Group, tensors: Sequence[torch.Tensor], sinks: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """One kernel call on views of q, k and v."""
    q, k, v = tensors
    wide = g.k.length < WIDEN_BELOW
    q, k, v = (_wide(x, job.kernel, wide) for x in (g.q.take(q), g.k.take(k), g.k.take(v)))
    out, lse = job.kernel.forward(q, k, v, job.spec(g))
    return (out, lse) if sinks is None else _with_sinks(out, lse, sinks)


def _backward_group(job: Job, g: Group, tensors: Sequence[torch.Tensor], lse: torch.Tensor) -> Grads:
    """One kernel call on views of the output's gradient, q, k, v and the output."""
    grad, q, k, v, out = tensors
    wide = g.k.length < WIDEN_BELOW
    taken = (g.q.take_gradient(grad), g.q.take(q), g.k.take(k), g.k.take(v), g.q.take(out))
    grad, q, k, v, out = (_wide(x, job.kernel, wide) for x in taken)
    return job.kernel.backward(grad, q, k, v, out, g.q.take(lse[..., None])[..., 0], job.spec(g))


def _empty_lse(job: Job, q: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """The log-sum-exp before any key was seen: that of the sink alone, and of nothing in the padding."""
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    if job.plan.covers_q:
        return torch.empty(q.shape[:2], dtype=dtype, device=q.device)
    if sinks is None:
        return torch.full(q.shape[:2], -torch.inf, dtype=dtype, device=q.device)
    lse = sinks.to(dtype).expand(q.shape[:2]).clone()
    return lse.index_fill_(0, job.segments.padding(q.device), -torch.inf)


class Attention(torch.autograd.Function):
    """Forward and backward of a whole batch as one autograd node; no gradient flows through the log-sum-exp."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None, job: Job
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and log-sum-exp."""
        out, lse = forward(job, q, k, v, sinks)
        ctx.save_for_backward(q, k, v, sinks, out, lse)
        ctx.job = job
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of q, k, v and sinks."""
        q, k, v, sinks, out, lse = ctx.saved_tensors
        grad = grads[0] if grads[0].stride(-1) == 1 else grads[0].contiguous()
        with autocast.off(q.device):
            found = backward(ctx.job, grad, (q, k, v, out), lse)
            grad_sinks = None if sinks is None else sinks_grad(grad, out, lse, sinks)
        return *found, grad_sinks, None


def _one_width(kernel: Kernel, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """The flash kernel wants one head size; zeros beside narrower values (latent attention) or keys change nothing."""
    width = max(x.shape[2] for x in tensors)
    if isinstance(kernel, Written):
        return list(tensors)
    return [x if x.shape[2] == width else torch.nn.functional.pad(x, (0, width - x.shape[2])) for x in tensors]


def _wide(x: torch.Tensor, kernel: Kernel, wide: bool) -> torch.Tensor:
    """Float32 where the kernel is slower in half precision than in that."""
    half = x.dtype in (torch.bfloat16, torch.float16)
    return x.float() if wide and half and isinstance(kernel, FlashCpu) else x


def _with_sinks(out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A sink takes its share of every softmax; handing the backward this output and log-sum-exp makes it exact."""
    total = torch.logaddexp(lse, sinks.to(lse.dtype)[:, None])
    return (out * torch.exp(lse - total)[..., None]).to(out.dtype), total


def sinks_grad(grad: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """The sink's weight times minus what it takes away, summed over queries."""
    taken = (grad.to(lse.dtype) * out.to(lse.dtype)).sum(-1)
    weight = torch.exp(sinks.to(lse.dtype) - lse).masked_fill(torch.isneginf(lse), 0.0)
    return -(weight * taken).sum(0).to(sinks.dtype)


BACKEND = Backend(
    name="segmented",
    summary="segment by segment on a fixed-shape kernel (any device)",
    capability=Capability(softcap=True, sinks=True),
    missing=always,
    run=run,
    padding=True,
)
