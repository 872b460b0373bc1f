"""Two real ranks with unequal numbers of targets take the step that one process would take (promise 7)."""

import os
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from padless.rows import collate
from padless.training.loss import count_targets, normalize_gradients, packed_loss

VOCAB, WIDTH, RANKS = 13, 8, 2
ROWS = [[2, 9], [5], [3, 3, 4], [17]]  # lengths of the samples of four micro-batches; two per rank


def batches() -> list:
    generator = np.random.default_rng(0)
    return [collate([[generator.integers(0, VOCAB, n) for n in row]]).torch() for row in ROWS]


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(VOCAB, WIDTH), torch.nn.Linear(WIDTH, VOCAB)).double()


def single_process_gradients() -> list[torch.Tensor]:
    net = model()
    total = count_targets(batches())
    for batch in batches():
        packed_loss(net(batch.input_ids), batch, denominator=total).backward()
    return [p.grad for p in net.parameters()]


def wrap(net: torch.nn.Module, how: str) -> torch.nn.Module:
    if how == "ddp":
        return torch.nn.parallel.DistributedDataParallel(net)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(net, mesh=init_device_mesh("cpu", (RANKS,)))


def full(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


def rank_main(rank: int, port: int, how: str, late: bool, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    mine = batches()[rank * 2 : rank * 2 + 2]
    net = wrap(model(), how)
    total = count_targets(mine, group=True)
    for batch in mine:
        loss = packed_loss(net(batch.input_ids), batch, denominator=1 if late else total)
        (loss if late else loss * RANKS).backward()
    if late:
        normalize_gradients(net.parameters(), total, averaged_over=RANKS)
    gradients = [full(p.grad) for p in net.parameters()]
    if rank == 0:
        torch.save(gradients, out)
    dist.barrier()
    # gloo's threads can abort an orderly exit of the interpreter; the result is on disk, so leave without one.
    os._exit(0)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "late"), [("ddp", False), ("fsdp2", True)])
def test_ranks_equal_one_process(how: str, late: bool, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    out = tmp_path / "gradients.pt"
    mp.spawn(rank_main, args=(port, how, late, str(out)), nprocs=RANKS)
    for mine, want in zip(torch.load(out), single_process_gradients(), strict=True):
        torch.testing.assert_close(mine, want, rtol=1e-12, atol=1e-15)
