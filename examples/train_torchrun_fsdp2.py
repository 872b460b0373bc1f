"""A plain loop with FSDP2: `torchrun --nproc-per-node 2 examples/train_torchrun_fsdp2.py [STORE]`.

The three changed lines are marked. Run by `python` alone it is one rank. FSDP averages gradients over ranks, so the
loss, which is divided by the targets of all ranks, is multiplied by their number.
"""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from training_task import ROWS, STEPS, main, micro_batches, padded_loss

from padless.frameworks.transformers import prepare
from padless.frameworks.transformers_batch import transformers_batch
from padless.training import Cost, PackedDataset, PackedLoader, RowSampler, count_targets, packed_loss

ACCUMULATION = 2


def train(model: Any, dataset: PackedDataset, *, packed: bool, steps: int = STEPS, rows: int = ROWS) -> list[float]:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    device = torch.device("cuda", rank) if dist.get_backend() == "nccl" else torch.device("cpu")
    if packed:
        prepare(model)  # 1. the model, before it is sharded
    mesh = init_device_mesh(device.type, (ranks,))
    for layer in model.base_model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    cost = Cost(linear=24 * model.config.hidden_size, quadratic=1)  # FLOPs of a token, and of a pair, up to a factor
    sampler = RowSampler(dataset, rows=rows, drop_last=True, ranks=ranks, rank=rank, cost=cost)
    losses = []
    for batches in micro_batches(PackedLoader(sampler), steps, ACCUMULATION):  # 2. the loader
        targets = count_targets(batches, group=True)
        total = torch.zeros((), dtype=torch.float64, device=device)
        for batch in (batch.to(device) for batch in batches):
            if packed:
                logits = model(**transformers_batch(batch) | {"labels": None}).logits
                loss = packed_loss(logits, batch, denominator=targets)  # 3. the loss
            else:
                loss = padded_loss(model, batch, dataset.plan.capacity, targets)
            (loss * ranks).backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        losses.append(total.item())
    return losses


def start() -> None:
    """Join the others that torchrun started, or be alone."""
    alone = {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    if "RANK" not in os.environ:
        os.environ.update(alone)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


if __name__ == "__main__":
    start()
    main(train, show=dist.get_rank() == 0)
    dist.destroy_process_group()
