"""The naive float64 reference: one segment after the other, every score written out. Slow, and meant to be read."""

import torch

from padless.attention.capability import Backend, Capability, always
from padless.attention.problem import Problem, visible


def run(p: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """Output `[Tq, Hq, Dv]` in q's dtype and float64 log-sum-exp `[Tq, Hq]`; padding gives 0 and -inf."""
    group = p.q.shape[1] // p.k.shape[1]
    q = p.q.double()
    k = p.k.double().repeat_interleave(group, dim=1)
    v = p.v.double().repeat_interleave(group, dim=1)
    s = p.segments
    outs, lses, filled = [], [], 0
    for qs, ql, ks, kl in zip(
        s.q_starts.tolist(), s.q_lengths.tolist(), s.k_starts.tolist(), s.k_lengths.tolist(), strict=True
    ):
        out, lse = _segment(p, q[qs : qs + ql], k[ks : ks + kl], v[ks : ks + kl])
        outs += [v.new_zeros(qs - filled, *out.shape[1:]), out]
        lses += [q.new_full((qs - filled, q.shape[1]), -torch.inf), lse]
        filled = qs + ql
    outs.append(v.new_zeros(s.q_slots - filled, *v.shape[1:]))
    lses.append(q.new_full((s.q_slots - filled, q.shape[1]), -torch.inf))
    return torch.cat(outs).to(p.q.dtype), torch.cat(lses).detach()


def _segment(p: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of one segment, heads already matched."""
    scores = torch.einsum("qhd,khd->hqk", q, k) * p.scale
    if p.softcap:
        scores = p.softcap * torch.tanh(scores / p.softcap)
    seen = torch.from_numpy(visible(len(q), len(k), p.left, p.right)).to(q.device)
    scores = scores.masked_fill(~seen, -torch.inf)
    if p.sinks is not None:
        sink = p.sinks.double()[:, None, None].expand(-1, len(q), 1)
        scores = torch.cat([scores, sink], dim=2)
    blind = torch.isneginf(scores).all(dim=2, keepdim=True)
    scores = scores.masked_fill(blind, 0.0)
    if scores.shape[2] == 0:
        return v.new_zeros(len(q), *v.shape[1:]), q.new_full(q.shape[:2], -torch.inf)
    lse = torch.logsumexp(scores, dim=2, keepdim=True)
    weights = torch.exp(scores - lse).masked_fill(blind, 0.0)[..., : len(k)]
    weights = torch.nn.functional.dropout(weights, p.dropout_p, training=p.dropout_p > 0)
    out = torch.einsum("hqk,khd->qhd", weights, v)
    return out, lse.masked_fill(blind, -torch.inf).squeeze(2).T


BACKEND = Backend(
    name="reference",
    summary="naive float64, one segment after the other (any device, slow)",
    capability=Capability(softcap=True, sinks=True, dropout=True),
    missing=always,
    run=run,
    padding=True,
)
