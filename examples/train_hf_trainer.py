"""The Trainer of Transformers: `python examples/train_hf_trainer.py [STORE]`.

The three changed lines are marked. Trainer counts the targets of all accumulation steps (and of all ranks, as
`average_tokens_across_devices` is on) and the model divides by them, so unequal rows need nothing more. Its sampler
deals whole rows, and it resumes by skipping batches.
"""

import tempfile
from typing import Any

from training_task import ROWS, STEPS, main, padded
from transformers import PrinterCallback, Trainer, TrainingArguments

from padless.frameworks.transformers import PackedCollator, prepare
from padless.training import PackedDataset


def train(
    model: Any,
    dataset: PackedDataset,
    *,
    packed: bool,
    steps: int = STEPS,
    callbacks: list[Any] | None = None,
    **settings: Any,
) -> list[float]:
    if packed:
        prepare(model)  # 1. the model
    with tempfile.TemporaryDirectory() as folder:
        arguments = {
            "output_dir": folder,
            "max_steps": steps,
            "per_device_train_batch_size": ROWS,  # rows, not samples
            "gradient_accumulation_steps": 2,
            "learning_rate": 1e-3,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "remove_unused_columns": False,  # a batch has no columns
            "dataloader_pin_memory": False,
            **settings,
        }
        trainer = Trainer(
            model=model,
            args=TrainingArguments(**arguments),
            train_dataset=dataset,  # 2. the rows  # type: ignore[arg-type]
            data_collator=PackedCollator() if packed else lambda rows: padded(rows, dataset.plan.capacity),  # 3.
        )
        for callback in callbacks or []:
            trainer.add_callback(callback(trainer))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    main(train)
