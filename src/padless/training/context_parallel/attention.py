"""Attention over context-parallel ranks: keys and values are gathered, queries stay.

The executable definition of what Transformer Engine's context-parallel kernels compute (its `all_gather` kind): every
rank holds its queries, sees all keys, and computes its own rows of the output. Each run of consecutive queries of a
segment attends the segment's keys up to its own end, which is a plain varlen call with a bottom-right causal mask.
"""

import weakref
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from padless.attention import varlen_attention
from padless.attention.segments import Segments
from padless.errors import PadlessError
from padless.masks.geometry import changes, pieces_of, ranges
from padless.rows.tensors import host
from padless.training.context_parallel.shard import Shard


def context_parallel_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shard: Shard, *, group: Any = None, **options: Any
) -> torch.Tensor:
    """This rank's rows of `varlen_attention(q, k, v, batch)`, gradients included.

    Args:
        q: Queries of this rank's slots `[t, Hq, D]`.
        k: Keys of this rank's slots `[t, Hkv, D]`.
        v: Values of this rank's slots `[t, Hkv, Dv]`.
        shard: The slots; hand the same object to every layer, which shares its indices.
        group: The context-parallel process group; the default group unless given.
        options: `scale`, `softcap`, `sinks`, `dropout_p`, `deterministic`, `backend` of `varlen_attention`. Every rank
            gets the gradient of its own queries' use of `sinks`, as of any other parameter.

    Returns:
        `[t, Hq, Dv]`; 0 on padding.

    Raises:
        PadlessError: When the group is not of the shard's size, or the rule is one that a run of queries cannot say.
    """
    ranks = dist.get_world_size(group)
    if ranks != shard.parallel.ranks or dist.get_rank(group) != shard.rank:
        raise PadlessError(
            f"the group has {ranks} ranks and this is rank {dist.get_rank(group)} of it, but the shard is rank "
            f"{shard.rank} of {shard.parallel.ranks}: keys would land in the wrong slots"
        )
    plan = _plan_of(shard, q.device)
    keys, values = (_gather(x, plan.order, plan.slots, group).index_select(0, plan.keys) for x in (k, v))
    queries = q.index_select(0, plan.queries)
    if not len(queries):  # all padding here, yet the other ranks wait for this one's part in their gradients
        return q.new_zeros(*q.shape[:2], v.shape[2]) + sum(nothing.sum() for nothing in (queries, keys, values))
    causal, window = plan.causal, plan.window
    out = varlen_attention(queries, keys, values, plan.segments, causal=causal, window=window, **options)
    return out.new_zeros(q.shape[0], *out.shape[1:]).index_copy(0, plan.queries, out)


class _Plan(NamedTuple):
    """Which local queries attend which gathered keys, made once per shard and device."""

    segments: Segments
    queries: torch.Tensor
    keys: torch.Tensor
    order: torch.Tensor
    slots: torch.Tensor
    causal: bool
    window: tuple[int | None, int | None] | None


_plans: "weakref.WeakKeyDictionary[Shard, _Plan]" = weakref.WeakKeyDictionary()


def _plan_of(shard: Shard, device: Any) -> _Plan:
    if shard not in _plans or _plans[shard].queries.device != device:
        _plans[shard] = _make_plan(shard, device)
    return _plans[shard]


def _make_plan(shard: Shard, device: Any) -> _Plan:
    batch = shard.batch.numpy()
    rule = batch.rule
    causal = rule.kind == "causal"
    left, right = rule.window or (None, None)
    if rule.has_ranks or (not causal and (left is not None or right is not None)):
        raise PadlessError(
            f"{rule} over context-parallel ranks: a run of queries attends one run of keys here, which says causal "
            "rules (with a window to the left, with chunks) and bidirectional ones (with chunks); others need all of "
            "a segment's queries on one rank"
        )
    q_start, q_length, k_start, k_length = _runs(shard, host(batch.segment_ids), *pieces_of(batch)[:2], causal)
    local = np.searchsorted(shard.slots, q_start)
    on_device = [
        torch.from_numpy(index).to(device)
        for index in (
            ranges(local, q_length),
            ranges(k_start, k_length),
            np.argsort(np.concatenate(shard.parallel.slots(batch)), kind="stable"),
            shard.slots,
        )
    ]
    segments = Segments.of(*(np.concatenate([[0], np.cumsum(n)]) for n in (q_length, k_length)))
    return _Plan(segments, *on_device, causal=causal, window=rule.window)


def _runs(
    shard: Shard, segment_ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray, causal: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """First slot and length of each run of queries, and of the keys that it attends."""
    mine = shard.slots[segment_ids[shard.slots] > 0]
    if not len(mine):
        return mine, mine, mine, mine
    piece = np.searchsorted(starts, mine, side="right") - 1
    heads = np.flatnonzero(changes(piece) | changes(mine - np.arange(len(mine))))
    first, piece = mine[heads], piece[heads]
    length = np.diff(np.append(heads, len(mine)))
    seen = first + length - starts[piece] if causal else lengths[piece]
    return first, length, starts[piece], seen


class _Gathered(torch.autograd.Function):
    """All ranks' rows in the order of the whole batch; gradients are summed over ranks and cut out again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, order: torch.Tensor, slots: torch.Tensor, group: Any) -> torch.Tensor:
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        ctx.group = group
        ctx.save_for_backward(slots)
        return torch.cat(parts).index_select(0, order)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (slots,) = ctx.saved_tensors
        whole = gradients[0].contiguous().clone()
        dist.all_reduce(whole, group=ctx.group)
        return whole.index_select(0, slots), None, None, None


def _gather(x: torch.Tensor, order: torch.Tensor, slots: torch.Tensor, group: Any) -> torch.Tensor:
    gathered = _Gathered.apply(x, order, slots, group)
    assert isinstance(gathered, torch.Tensor)
    return gathered
