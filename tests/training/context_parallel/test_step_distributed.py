"""Pack, schedule, slice: one optimizer step of four processes (CP 2 x DP 2) is the step of one process."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from padless import varlen_attention
from padless.rows import Batch, collate
from padless.training.context_parallel import ContextParallel, Shard, context_parallel_attention, sharded_loss
from padless.training.loss import count_targets, packed_loss
from padless.training.scheduling import SCHEDULERS, Cost, Samples, SchedulingSpec, check_assignment, schedule

from .ranks import run_ranks

VOCAB, WIDTH, HEADS, DP, CP = 17, 16, 2, 2, 2
LENGTHS = [3, 30, 7, 12, 1, 20, 9, 4, 16, 8, 2, 11, 5, 21, 6, 13, 10, 14]
CASES = [("dp-balanced", "zigzag"), ("dynamic-cp", "zigzag"), ("wlb", "documents")]
SPEC = SchedulingSpec(dp=DP, cp=CP, max_seqlen_per_rank=24, cost=Cost(linear=40, quadratic=1), max_delay=0)


def samples() -> list[dict]:
    """Random tokens, two thirds of them targets."""
    rng = np.random.default_rng(3)
    return [
        {"input_ids": rng.integers(0, VOCAB, n), "loss_mask": rng.random(n) < 0.67, "sample_id": i}
        for i, n in enumerate(LENGTHS)
    ]


class Layer(nn.Module):
    """Pre-norm attention with rotary positions, two query heads to one of keys, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        head = WIDTH // HEADS
        self.norms = nn.ModuleList([nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)])
        self.q, self.kv, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * head), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, positions: torch.Tensor, attend) -> torch.Tensor:
        y = self.norms[0](x)
        q = self.q(y).unflatten(1, (HEADS, -1))
        k, v = self.kv(y).unflatten(1, (2, 1, -1)).unbind(1)
        x = x + self.out(attend(rotated(q, positions), rotated(k, positions), v).flatten(1))
        return x + self.mlp(self.norms[1](x))


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    angles = positions[:, None, None].to(x.dtype) * 100.0 ** -(torch.arange(half, dtype=x.dtype) / half)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


class Model(nn.Module):
    """Two layers between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attend) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, positions, attend)
        return self.head(x)


def make_model() -> tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Model().double()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def one_process() -> tuple[float, dict[str, torch.Tensor]]:
    """The samples one by one, never packed."""
    model, optimizer = make_model()
    alone = [collate([sample]).torch() for sample in samples()]
    total, value = count_targets(alone), 0.0
    for batch in alone:

        def attend(q, k, v, batch: Batch = batch) -> torch.Tensor:
            return varlen_attention(q, k, v, batch)

        loss = packed_loss(model(batch.input_ids, batch.position_ids, attend), batch, denominator=total)
        loss.backward()
        value += loss.item()
    optimizer.step()
    return value, model.state_dict()


def one_rank(rank: int, strategy: str, scheme: str) -> tuple[float, dict[str, torch.Tensor], list[list[int]]]:
    """One of four: data-parallel rank `rank // 2`, context-parallel rank `rank % 2`."""
    lengths = [len(sample["input_ids"]) for sample in samples()]
    made = schedule(lengths, SPEC, strategy=strategy)
    check_assignment(made, Samples.of(lengths))
    groups = {ranks: dist.new_group(list(ranks)) for ranks in [(0, 1), (2, 3), (0, 1, 2, 3), (0,), (1,), (2,), (3,)]}
    model, optimizer = make_model()
    mine, shares = [], made.of_rank(rank)
    for share in shares:
        cp = ContextParallel(ranks=len(share.group), scheme=scheme)  # type: ignore[arg-type]
        row = [samples()[i] for i in share.ids]
        batch = collate(row, align=cp.align, pad_to_multiple=cp.pad_to_multiple, capacity=None).torch()
        assert batch.num_slots // cp.ranks <= SPEC.max_seqlen_per_rank
        mine.append(Shard(batch=batch, parallel=cp, rank=rank - share.group.start))
    # Each group counts its rows once: by its first member.
    leads = [shard.batch for shard in mine if shard.rank == 0]
    total = count_targets(leads, group=True)
    value = torch.zeros((), dtype=torch.float64)
    for share, shard in zip(shares, mine, strict=True):
        group = groups[tuple(share.group)]

        def attend(q, k, v, shard: Shard = shard, group=group) -> torch.Tensor:
            return context_parallel_attention(q, k, v, shard, group=group)

        loss = sharded_loss(model(shard.input_ids, shard.position_ids, attend), shard, denominator=total)
        loss.backward()
        value += loss.detach()
    for x in [value, *(p.grad for p in model.parameters())]:
        dist.all_reduce(x)
    optimizer.step()
    return value.item(), model.state_dict(), [[s.microbatch, *s.group, *s.ids.tolist()] for s in made.of_rank(0)]


def every_case(rank: int) -> list:
    return [one_rank(rank, strategy, scheme) for strategy, scheme in CASES]


@pytest.mark.slow
def test_four_processes_take_the_step_of_one(tmp_path: Path) -> None:
    assert {strategy for strategy, _ in CASES} < set(SCHEDULERS)
    value, want = one_process()
    before = make_model()[0].state_dict()
    for case, *ranks in zip(CASES, *run_ranks(DP * CP, every_case, tmp_path), strict=True):
        for mine, state, scheduled in ranks:
            assert scheduled == ranks[0][2], f"{case}: ranks disagree on the schedule"
            assert abs(mine - value) <= 1e-10 * value, case
            for name, after in state.items():
                torch.testing.assert_close(after, want[name], rtol=1e-10, atol=1e-12)
                assert not torch.equal(after, before[name]), f"{name} did not move"


def test_the_dynamic_case_has_groups_of_several_sizes() -> None:
    assert set(schedule(LENGTHS, SPEC, strategy="dynamic-cp").width.tolist()) == {1, 2, 4}
