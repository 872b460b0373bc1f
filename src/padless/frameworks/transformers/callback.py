"""HF Trainer and TRL: packing metrics through whatever `report_to` names."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers.trainer_callback import TrainerCallback

from padless.rows import IGNORED, Batch
from padless.training.balance import Cost
from padless.training.dataset import PackedDataset
from padless.training.metrics import Facts, PackingMetrics

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

_KEY = "packing_facts"


class PackingCallback(TrainerCallback):
    """Logs `PackingMetrics` whenever the Trainer logs, to wherever it logs; each entry covers the steps since the last.

    A callback of Transformers never sees a batch. So the Trainer's collator sends what it counted along with its
    arguments, worker processes included, and a hook takes that off again before the model sees it.

    Args:
        trainer: Its collator is wrapped and its model gets the hook.
        capacity: Slots that a row could hold; a `PackedDataset` knows, and other rows are measured by their own slots.
        cost, window, rise: As for `PackingMetrics`.

    Example:
        trainer = Trainer(model=..., train_dataset=dataset, data_collator=PackedCollator(), report_to="tensorboard")
        trainer.add_callback(PackingCallback(trainer))
    """

    def __init__(
        self,
        trainer: "Trainer",
        *,
        capacity: int | None = None,
        cost: Cost | None = None,
        window: int = 100,
        rise: float = 0.05,
    ) -> None:
        dataset = trainer.train_dataset
        if capacity is None and isinstance(dataset, PackedDataset):
            capacity = dataset.plan.capacity
        self._trainer = trainer
        group = True if trainer.args.world_size > 1 else None
        self._metrics = PackingMetrics(capacity=capacity, cost=cost, group=group, window=window, rise=rise)
        self._facts = Facts()
        trainer.data_collator = _Counting(collate=trainer.data_collator, capacity=capacity)
        model: Any = trainer.model
        model.register_forward_pre_hook(self._take_facts, with_kwargs=True)

    def _take_facts(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        facts = kwargs.pop(_KEY, None)
        if facts is not None and model.training:
            self._facts = self._facts.plus(Facts(*facts))
        return args, kwargs

    def on_train_begin(
        self, args: "TrainingArguments", state: "TrainerState", control: "TrainerControl", **_: Any
    ) -> None:
        """Start the clock."""
        self._facts = Facts()
        self._metrics.restart()

    def on_step_end(
        self, args: "TrainingArguments", state: "TrainerState", control: "TrainerControl", **_: Any
    ) -> None:
        """Log when the Trainer is about to."""
        if control.should_log:
            self._trainer.log(self._metrics.step(self._facts))
            self._facts = Facts()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Counting:
    """A collator that sends facts along; picklable, for worker processes."""

    collate: Callable[[Any], dict[str, Any]]
    capacity: int | None

    def __call__(self, features: Any) -> dict[str, Any]:
        inputs = self.collate(features)
        if isinstance(features, Batch):
            inputs[_KEY] = tuple(Facts.of(features, capacity=self.capacity))
        else:
            inputs[_KEY] = tuple(self._of_rows(features, inputs))
        return inputs

    def _of_rows(self, features: Sequence[Mapping[str, Any]], inputs: dict[str, Any]) -> Facts:
        """Rows with `seq_lengths`, as `padless export --to trl` writes them; a sample without is a row of its own."""
        rows = [np.asarray(row.get("seq_lengths") or [len(row["input_ids"])], dtype=np.int64) for row in features]
        slots = inputs["input_ids"].numel()
        return Facts(
            rows=len(rows),
            segments=sum(map(len, rows)),
            tokens=int(sum(row.sum() for row in rows)),
            slots=slots,
            room=max(slots, len(rows) * (self.capacity or 0)),
            targets=int((inputs["labels"] != IGNORED).sum()),
            pairs=int(sum(np.square(row).sum() for row in rows)),
            row_pairs=int(sum(row.sum() ** 2 for row in rows)),
        )
