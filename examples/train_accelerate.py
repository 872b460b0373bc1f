"""Accelerate: `python examples/train_accelerate.py [STORE]`, or `accelerate launch` of the same.

The three changed lines are marked. Accelerate is not given the loader: it would share rows out among ranks that the
sampler has dealt already, and the loss divides by the targets of the whole step, so nothing is averaged a second time.
"""

from typing import Any

import torch
from accelerate import Accelerator
from training_task import ROWS, STEPS, main, micro_batches, padded_loss

from padless.frameworks.transformers import prepare
from padless.frameworks.transformers_batch import transformers_batch
from padless.training import PackedDataset, PackedLoader, RowSampler, count_targets, packed_loss

ACCUMULATION = 2


def train(model: Any, dataset: PackedDataset, *, packed: bool, steps: int = STEPS) -> list[float]:
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    ranks, rank = accelerator.num_processes, accelerator.process_index
    if packed:
        prepare(model)  # 1. the model
    sampler = RowSampler(dataset, rows=ROWS, drop_last=True, ranks=ranks, rank=rank)
    loader = PackedLoader(sampler)  # 2. the loader
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    model.train()
    losses = []
    for batches in micro_batches(loader, steps, ACCUMULATION):
        targets = count_targets(batches, group=True if ranks > 1 else None)
        total = torch.zeros((), device=accelerator.device)
        for batch in (batch.to(accelerator.device) for batch in batches):
            if packed:
                logits = model(**transformers_batch(batch) | {"labels": None}).logits
                loss = packed_loss(logits, batch, denominator=targets)  # 3. the loss
            else:
                loss = padded_loss(model, batch, dataset.plan.capacity, targets)
            accelerator.backward(loss * ranks)  # DDP averages over ranks
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(total, "sum").item())
    return losses


if __name__ == "__main__":
    main(train)
