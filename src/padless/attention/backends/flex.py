"""FlexAttention: one compiled kernel, the rule as a function of (segment, position)."""

import functools
from typing import Any

import torch

from padless.attention.capability import Backend, Capability
from padless.attention.installed import function, present
from padless.attention.problem import Problem

_MODULE = "torch.nn.attention.flex_attention"
_ARGUMENTS = ("query", "key", "value", "score_mod", "block_mask", "scale", "enable_gqa", "return_lse")


def run(p: Problem) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output and log-sum-exp; sinks are worked in from the log-sum-exp, through which gradients flow."""
    # On a CPU the kernel refuses what requires gradients, even where none are recorded.
    out, lse = _kernel(p.q.device.type)(
        *(x if p.needs_grad else x.detach() for x in (p.q, p.k, p.v)),
        score_mod=_cap(p.softcap) if p.softcap else None,
        block_mask=_block_mask(p),
        scale=p.scale,
        enable_gqa=p.q.shape[1] != p.k.shape[1],
    )
    if p.sinks is not None:
        total = torch.logaddexp(lse, p.sinks.to(lse.dtype))
        out, lse = (out * torch.exp(lse - total)[..., None]).to(p.q.dtype), total
    return out, lse.detach()


@functools.cache
def _kernel(device: str) -> Any:
    """Compiled where gradients need it; eager on CPUs, where the compiled one saves nothing worth a compiler."""
    flex = function(_MODULE, "flex_attention", _ARGUMENTS)

    def packed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        # The views are made in here, for the compiler fails on views of what requires gradients.
        out, lse = flex(*(x.transpose(0, 1)[None] for x in (q, k, v)), return_lse=True, **options)
        return out[0].transpose(0, 1), lse[0].T

    return packed if device == "cpu" else torch.compile(packed, dynamic=False)


@functools.cache
def _cap(softcap: float) -> Any:
    """The same function object each time, so that nothing is compiled anew."""
    return lambda score, _b, _h, _q, _k: softcap * torch.tanh(score / softcap)


def _block_mask(p: Problem) -> Any:
    """Who sees whom, made once per batch and shared by the layers."""
    s, device = p.segments, p.q.device

    def make() -> Any:
        create = function(_MODULE, "create_block_mask", ("mask_mod", "B", "H", "Q_LEN", "KV_LEN", "device"))
        return create(_mask_mod(p), None, None, s.q_slots, s.k_slots, device=str(device))

    return s.kept(("flex", p.left, p.right, device), make)


def _mask_mod(p: Problem) -> Any:
    s, device, left, right = p.segments, p.q.device, p.left, p.right
    ids = torch.arange(len(s))
    q_segment = ids.repeat_interleave(torch.tensor(s.q_lengths)).to(device)
    k_segment = ids.repeat_interleave(torch.tensor(s.k_lengths)).to(device)
    # Positions count back from the segment's end, which aligns the diagonal to the bottom right.
    q_place = (torch.arange(s.q_slots) - torch.tensor(s.q_starts + s.q_lengths)[q_segment.cpu()]).to(device)
    k_place = (torch.arange(s.k_slots) - torch.tensor(s.k_starts + s.k_lengths)[k_segment.cpu()]).to(device)

    def mask_mod(_b: Any, _h: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        seen = q_segment[q] == k_segment[k]
        distance = k_place[k] - q_place[q]
        if right is not None:
            seen = seen & (distance <= right)
        if left is not None:
            seen = seen & (distance >= -left)
        return seen

    return mask_mod


BACKEND = Backend(
    name="flex",
    summary="FlexAttention (CUDA; CPU without gradients)",
    capability=Capability(devices=("cuda", "cpu"), softcap=True, sinks=True, backward=("cuda",), deterministic=False),
    missing=lambda: None if present(_MODULE) else "this PyTorch has no FlexAttention (2.5 and later have it)",
    run=run,
)
