"""SDPA with one dense mask over the row: what everybody has, quadratic in the row's tokens."""

import torch

from padless.attention.capability import Backend, Capability, always
from padless.attention.problem import Problem, visible


def run(p: Problem) -> tuple[torch.Tensor, None]:
    """Output `[Tq, Hq, Dv]`; the mask is made once per batch and shared by the layers."""
    mask, blind = p.segments.kept(("dense", p.left, p.right, p.q.device), lambda: _masks(p))
    q, k, v = (x.transpose(0, 1)[None] for x in (p.q, p.k, p.v))
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=p.dropout_p, scale=p.scale, enable_gqa=True
    )
    out = out[0].transpose(0, 1)
    return out if blind is None else out.masked_fill(blind[:, None, None], 0.0), None


def _masks(p: Problem) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The row's mask, and the queries that see no key, if any.

    What SDPA makes of such a query depends on the kernel it chooses (zeros on a CPU, a mean of values on a GPU), so it
    is given a key here and its output is dropped.
    """
    mask = row_mask(p)
    blind = ~mask.any(1)
    if not blind.any():
        return mask.to(p.q.device), None
    mask[blind, 0] = True
    return mask.to(p.q.device), blind.to(p.q.device)


def row_mask(p: Problem) -> torch.Tensor:
    """Who sees whom in the whole row; bool `[Tq, Tk]`."""
    s = p.segments
    mask = torch.zeros(s.q_slots, s.k_slots, dtype=torch.bool)
    for qs, ql, ks, kl in zip(s.q_starts, s.q_lengths, s.k_starts, s.k_lengths, strict=True):
        mask[qs : qs + ql, ks : ks + kl] = torch.from_numpy(visible(int(ql), int(kl), p.left, p.right))
    return mask


BACKEND = Backend(
    name="dense",
    summary="SDPA with a dense mask over the row (any device, quadratic)",
    capability=Capability(dropout=True, deterministic=False, lse=False),
    missing=always,
    run=run,
)
