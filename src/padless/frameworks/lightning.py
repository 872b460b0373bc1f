"""Lightning: packing metrics through the loggers that the Trainer has already."""

from typing import Any

from padless.errors import PadlessError, require

require("lightning", extra="lightning", feature="padless.frameworks.lightning")

import lightning  # noqa: E402

from padless.rows import Batch  # noqa: E402
from padless.training.balance import Cost  # noqa: E402
from padless.training.dataset import PackedDataset  # noqa: E402
from padless.training.metrics import Facts, PackingMetrics  # noqa: E402


class PackingCallback(lightning.Callback):
    """Logs `PackingMetrics` after every optimizer step, with `log_dict`: to TensorBoard, W&B, MLflow, CSV, the bar.

    The loader shall give `Batch`es (a `PackedLoader` without a dialect, which the training step applies itself): the
    keyword arguments of a model no longer say where rows end and what is padding.

    Args:
        cost, window, rise: As for `PackingMetrics`.

    Example:
        >>> trainer = lightning.Trainer(callbacks=[PackingCallback()], accelerator="cpu", logger=False)
    """

    def __init__(self, *, cost: Cost | None = None, window: int = 100, rise: float = 0.05) -> None:
        self._settings = {"cost": cost, "window": window, "rise": rise}
        self._metrics: PackingMetrics | None = None
        self._facts = Facts()
        self._steps = 0

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Learn the capacity from the loader, and whether there are ranks to sum over."""
        dataset = getattr(trainer.train_dataloader, "dataset", None)
        capacity = dataset.plan.capacity if isinstance(dataset, PackedDataset) else None
        group = True if trainer.world_size > 1 else None
        self._metrics = PackingMetrics(capacity=capacity, group=group, **self._settings)
        self._facts, self._steps = Facts(), trainer.global_step

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add a micro-batch; log when it ended an optimizer step."""
        if not isinstance(batch, Batch):
            raise PadlessError(
                f"PackingCallback: the loader gave a {type(batch).__name__}, which does not say where rows end; let "
                "PackedLoader give batches (no collate_fn) and apply the dialect in training_step"
            )
        assert self._metrics is not None
        self._facts = self._facts.plus(self._metrics.facts(batch))
        if trainer.global_step > self._steps:
            pl_module.log_dict(self._metrics.step(self._facts), batch_size=1)
            self._facts, self._steps = Facts(), trainer.global_step
