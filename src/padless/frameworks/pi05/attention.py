"""Attention of two experts over real tokens only: plain varlen calls, no mask tensor."""

import weakref
from dataclasses import dataclass

import torch

from padless.attention import Segments, varlen_attention
from padless.errors import PadlessError
from padless.frameworks.pi05.rows import PolicyRows
from padless.masks.calls import Call

_known: "weakref.WeakKeyDictionary[PolicyRows, _Compiled]" = weakref.WeakKeyDictionary()


def policy_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: PolicyRows, *, scale: float | None = None
) -> torch.Tensor:
    """Every real token sees what its block may see of its own sample.

    Args:
        q: Queries in the experts' order, `[P + S, Hq, D]`; or of the suffixes alone `[S, Hq, D]`, beside cached keys;
            or of the prefixes alone `[P, Hq, D]`, beside their own keys.
        k: Keys `[P + S, Hkv, D]`, or `[P, Hkv, D]` of the prefixes alone.
        v: Values, as `k`.
        rows: The batch. Hand the same object to every layer: its calls are compiled once.
        scale: Multiplies the scores; `1 / sqrt(D)` by default.

    Returns:
        `[.., Hq, D]`, in the order of `q`.

    Example:
        >>> rows = PolicyRows.of([[1, 1, 0], [1, 1, 1]], suffix_ranks=[1, 1])
        >>> q, k, v = torch.randn(3, 9, 2, 8).unbind()
        >>> policy_attention(q, k, v, rows).shape
        torch.Size([9, 2, 8])
        >>> torch.equal(policy_attention(q[5:], k, v, rows), policy_attention(q, k, v, rows)[5:])
        True
    """
    compiled = _compile(rows)
    prefix, total = rows.num_prefix, rows.num_tokens
    shape = (q.shape[0], k.shape[0])
    if shape == (prefix, prefix):
        return _run(compiled.prefix, q, k, v, scale)
    if shape == (total - prefix, total):
        return _run(compiled.suffix, q, k, v, scale)
    if shape != (total, total):
        raise PadlessError(
            f"{shape[0]} queries and {shape[1]} keys are not of {rows}: expected all tokens, or prefix queries and "
            "prefix keys, or suffix queries and all keys"
        )
    parts = (
        _run(compiled.prefix, q[:prefix], k[:prefix], v[:prefix], scale),
        _run(compiled.suffix, q[prefix:], k, v, scale),
    )
    return torch.cat(parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Step:
    """One call, its indices on a device and its boundaries on the host."""

    segments: Segments
    causal: bool
    q_index: torch.Tensor | None
    k_index: torch.Tensor | None

    @classmethod
    def of(cls, call: Call) -> "_Step":
        return cls(
            segments=Segments.of(call.cu_seqlens_q, call.cu_seqlens_k),
            causal=call.causal,
            q_index=None if call.q_index is None else torch.from_numpy(call.q_index),
            k_index=None if call.k_index is None else torch.from_numpy(call.k_index),
        )

    def take(self, side: str, x: torch.Tensor) -> torch.Tensor:
        index = self.q_index if side == "q" else self.k_index
        return x if index is None else x.index_select(0, self.on(side, x.device))

    def on(self, side: str, device: torch.device) -> torch.Tensor:
        """An index on `device`; copied once per batch."""
        key = ("policy", side, device)
        if key not in self.segments.cache:
            index = self.q_index if side == "q" else self.k_index
            assert index is not None
            self.segments.cache[key] = index.to(device)
        return self.segments.cache[key]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Compiled:
    prefix: tuple[_Step, ...]
    suffix: tuple[_Step, ...]


def _compile(rows: PolicyRows) -> _Compiled:
    if rows not in _known:
        _known[rows] = _Compiled(
            prefix=tuple(map(_Step.of, rows.prefix_calls)), suffix=tuple(map(_Step.of, rows.suffix_calls))
        )
    return _known[rows]


def _run(
    steps: tuple[_Step, ...], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None
) -> torch.Tensor:
    outs = [
        varlen_attention(
            step.take("q", q), step.take("k", k), step.take("k", v), step.segments, causal=step.causal, scale=scale
        )
        for step in steps
    ]
    if len(steps) == 1 and steps[0].q_index is None:
        return outs[0]
    index = torch.cat([step.on("q", q.device) for step in steps])
    found = torch.cat(outs)
    return torch.empty_like(found).index_copy(0, index, found)
