"""Lightning: `python examples/train_lightning.py [STORE]`.

The three changed lines are marked. Lightning saves and restores a `PackedLoader` with its checkpoints. It divides each
loss by the accumulation steps and averages over ranks; `normalize_gradients` undoes both and divides by targets.
"""

import logging
import warnings
from typing import Any

import lightning
import torch
from training_task import ROWS, STEPS, main, padded_loss

from padless.frameworks.lightning import PackingCallback
from padless.frameworks.transformers import prepare
from padless.frameworks.transformers_batch import transformers_batch
from padless.training import PackedDataset, PackedLoader, RowSampler, count_targets, normalize_gradients, packed_loss


class Model(lightning.LightningModule):
    """A causal language model and its loss, packed or padded."""

    def __init__(self, model: Any, width: int, packed: bool) -> None:
        super().__init__()
        self.model, self.width, self.packed = model, width, packed
        self.batches: list[Any] = []  # of this optimizer step
        self.sums: list[float] = []  # their losses
        self.losses: list[float] = []  # of all steps
        if packed:
            prepare(self.model)  # 1. the model

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """The sum of the losses of a micro-batch."""
        if self.packed:
            logits = self.model(**transformers_batch(batch) | {"labels": None}).logits
            loss = packed_loss(logits, batch, denominator=1)  # 2. the loss, a sum until the step is whole
        else:
            loss = padded_loss(self.model, batch, self.width, 1)
        self.batches.append(batch)
        self.sums.append(loss.item())
        return loss

    def on_before_optimizer_step(self, _: torch.optim.Optimizer) -> None:
        """Divide by the targets of all accumulation steps and ranks."""
        ranks = self.trainer.world_size
        targets = count_targets(self.batches, group=True if ranks > 1 else None)
        averaged_over = ranks * self.trainer.accumulate_grad_batches
        normalize_gradients(self.parameters(), targets, averaged_over=averaged_over)
        self.losses.append(sum(self.sums) / targets)
        self.log("train_loss", self.losses[-1], batch_size=1)
        self.batches, self.sums = [], []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Any."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def train(model: Any, dataset: PackedDataset, *, packed: bool, steps: int = STEPS, **settings: Any) -> list[float]:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    module = Model(model, dataset.plan.capacity, packed).train()
    loader = PackedLoader(RowSampler(dataset, rows=ROWS, drop_last=True))  # 3. the loader
    arguments = {
        "max_steps": steps,
        "max_epochs": -1,
        "accumulate_grad_batches": 2,
        "accelerator": "cpu",
        "use_distributed_sampler": False,  # the sampler deals rows to ranks
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "callbacks": [PackingCallback()] if settings.get("logger") else [],
        **settings,
    }
    lightning.Trainer(**arguments).fit(module, train_dataloaders=loader)
    return module.losses


if __name__ == "__main__":
    main(train)
