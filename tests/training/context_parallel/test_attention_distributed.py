"""Attention and loss over 2 and 4 processes equal one process, gradients included."""

from pathlib import Path

import numpy as np
import pytest
import torch

from padless import varlen_attention
from padless.errors import PadlessError
from padless.rows import Batch, Rule, collate
from padless.training.context_parallel import (
    ContextParallel,
    Shard,
    context_parallel_attention,
    sharded_loss,
)
from padless.training.loss import count_targets, packed_loss

from .ranks import run_ranks

LENGTHS = {"long": [[37, 5, 22], [1, 64, 9]], "short": [[5, 3]]}
HEADS, KV_HEADS, WIDTH, VOCAB = 4, 2, 8, 11
RULES = {
    "causal": Rule(),
    "bidirectional": Rule(kind="bidirectional"),
    "window": Rule(window=(9, None)),
    "chunk": Rule(chunk=10),
}
SCHEMES = ["zigzag", "contiguous", "documents"]
CASES = [(scheme, rule, "long") for scheme in SCHEMES for rule in RULES]
CASES += [(scheme, "causal", "short") for scheme in SCHEMES]  # contiguous ranks with nothing but padding
PADDED = 64


def make_batch(cp: ContextParallel, rule: str, data: str) -> Batch:
    rng = np.random.default_rng(0)
    rows = [[rng.integers(0, VOCAB, n) for n in row] for row in LENGTHS[data]]
    capacity = PADDED if data == "short" else None
    multiple = cp.pad_to_multiple
    return collate(rows, align=cp.align, pad_to_multiple=multiple, capacity=capacity, rule=RULES[rule]).torch()


def tensors(batch: Batch) -> list[torch.Tensor]:
    """Queries, keys, values and a head; padding holds NaN, which nobody may read."""
    slots = batch.num_slots
    generator = torch.Generator().manual_seed(1)
    shapes = [(slots, HEADS, WIDTH), (slots, KV_HEADS, WIDTH), (slots, KV_HEADS, WIDTH), (HEADS * WIDTH, VOCAB)]
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    for x in made[:3]:
        x[batch.segment_ids == 0] = torch.nan
    return [x.requires_grad_() for x in made]


def one_process(batch: Batch) -> list[torch.Tensor]:
    q, k, v, head = tensors(batch)
    out = varlen_attention(q, k, v, batch)
    loss = packed_loss(out.flatten(1) @ head, batch)
    return [out.detach(), loss.detach(), *torch.autograd.grad(loss, (q, k, v, head))]


def one_rank(rank: int, ranks: int) -> list[list[torch.Tensor]]:
    found = []
    for scheme, rule, data in CASES:
        cp = ContextParallel(ranks=ranks, scheme=scheme)  # type: ignore[arg-type]
        batch = make_batch(cp, rule, data)
        shard = Shard(batch=batch, parallel=cp, rank=rank)
        *qkv, head = tensors(batch)
        q, k, v = (shard.take(x.detach()).requires_grad_() for x in qkv)
        out = context_parallel_attention(q, k, v, shard)
        loss = sharded_loss(out.flatten(1) @ head, shard, denominator=count_targets(batch))
        found.append([out.detach(), loss.detach(), *torch.autograd.grad(loss, (q, k, v, head))])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_equal_one_process(ranks: int, tmp_path: Path) -> None:
    parts = run_ranks(ranks, one_rank, tmp_path, ranks)
    for i, (scheme, rule, data) in enumerate(CASES):
        cp = ContextParallel(ranks=ranks, scheme=scheme)  # type: ignore[arg-type]
        batch = make_batch(cp, rule, data)
        want = one_process(batch)
        outs, losses, *gradients = zip(*(part[i] for part in parts), strict=True)
        got = [cp.gather(outs, batch), sum(losses)]
        got += [cp.gather(g, batch) for g in gradients[:3]] + [sum(gradients[3])]
        for name, mine, one in zip(("out", "loss", "dq", "dk", "dv", "dhead"), got, want, strict=True):
            torch.testing.assert_close(mine, one, rtol=1e-11, atol=1e-12, msg=lambda m: f"{scheme} {rule} {name}: {m}")  # noqa: B023


def refused(rank: int) -> list[str]:
    """Errors that need a process group."""
    messages = []
    cp = ContextParallel(ranks=2)
    q = torch.zeros(4, 2, 8)
    for shard in (
        Shard(batch=collate([[1] * 8], align=4).torch(), parallel=cp, rank=1 - rank),
        Shard(
            batch=collate([{"input_ids": [1] * 8, "prefix_length": 3}], align=4, rule=Rule(kind="prefix-lm")).torch(),
            parallel=cp,
            rank=rank,
        ),
    ):
        try:
            context_parallel_attention(q, q, q, shard)
        except PadlessError as error:
            messages.append(str(error))
    return messages


@pytest.mark.slow
def test_a_wrong_group_and_a_rule_that_cannot_be_said_are_refused(tmp_path: Path) -> None:
    for rank, (wrong_rank, wrong_rule) in enumerate(run_ranks(2, refused, tmp_path)):
        assert f"this is rank {rank} of it, but the shard is rank {1 - rank} of 2" in wrong_rank
        assert "others need all of a segment's queries on one rank" in wrong_rule


def test_a_mean_over_a_ranks_own_targets_would_be_wrong() -> None:
    """What the global denominator is for: the four targets lie three to one."""
    cp = ContextParallel(ranks=2)
    labels = [-100, -100, 2, 3, 4, 5, -100, -100]
    batch = collate([{"input_ids": list(range(8)), "labels": labels}], align=4).torch()
    logits = torch.randn(8, VOCAB, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parts = [Shard(batch=batch, parallel=cp, rank=rank) for rank in (0, 1)]
    assert [part.num_targets for part in parts] == [1, 3]
    right = sum(sharded_loss(part.take(logits), part, denominator=4) for part in parts)
    local = sum(sharded_loss(part.take(logits), part, denominator=part.num_targets) for part in parts) / 2
    torch.testing.assert_close(right, packed_loss(logits, batch))
    assert abs(local - right) > 0.02 * right


def test_heads_that_look_further_ahead_have_their_own_labels() -> None:
    cp = ContextParallel(ranks=2)
    batch = collate([[0, 1, 2, 3], [4, 5]], align=4).torch()
    logits = torch.randn(8, VOCAB, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parts = [Shard(batch=batch, parallel=cp, rank=rank) for rank in (0, 1)]
    got = sum(sharded_loss(part.take(logits), part, denominator=2, ahead=2) for part in parts)
    want = -(logits.log_softmax(1)[0, 2] + logits.log_softmax(1)[1, 3]) / 2
    torch.testing.assert_close(got, want)


def test_weights_and_empty_steps() -> None:
    cp = ContextParallel(ranks=2)
    batch = collate([[0, 1, 2, 3], [4, 5]], align=4, loss_weights="per-sample").torch()
    logits = torch.randn(8, VOCAB, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parts = [Shard(batch=batch, parallel=cp, rank=rank) for rank in (0, 1)]
    got = sum(sharded_loss(part.take(logits), part, denominator=2) for part in parts)
    torch.testing.assert_close(got, packed_loss(logits, batch, reduction="weighted", denominator=2))
    assert sharded_loss(parts[0].take(logits), parts[0], denominator=0) == 0
    with pytest.raises(PadlessError, match=r"expected \[4, V\]"):
        sharded_loss(logits, parts[0], denominator=2)
    with pytest.raises(PadlessError, match="denominator=-1"):
        sharded_loss(parts[0].take(logits), parts[0], denominator=-1)
