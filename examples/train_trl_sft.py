"""TRL's SFTTrainer on rows packed beforehand: `python examples/train_trl_sft.py [STORE]`.

The three changed lines are marked. `padless pack --targets completion` has decided what is trained on, so TRL shall
not prepare the data again: it would cut rows at `max_length` and build masks of its own. It takes nothing but a
`Dataset`, so rows come as a table with a `seq_lengths` column, here in memory; `padless export STORE --to trl` writes
it.
"""

import tempfile
from collections.abc import Callable
from typing import Any

from datasets import Dataset
from tokenizers import Tokenizer, models
from training_task import ROWS, STEPS, main, padded
from transformers import PreTrainedTokenizerFast, PrinterCallback
from trl import SFTConfig, SFTTrainer

from padless.frameworks.transformers import PackedCollator, prepare
from padless.frameworks.trl import trl_table
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
            "bf16": False,
            "gradient_checkpointing": False,
            "remove_unused_columns": False,
            "dataloader_pin_memory": False,
            "packing": False,  # the rows are packed
            "dataset_kwargs": {"skip_prepare_dataset": True},
            **settings,
        }
        trainer = SFTTrainer(
            model=model,
            args=SFTConfig(**arguments),
            train_dataset=rows_of(dataset),  # 2. the rows
            data_collator=PackedCollator() if packed else padded_rows(dataset),  # 3. the collator
            processing_class=tokenizer(model.config.vocab_size),
        )
        for callback in callbacks or []:
            trainer.add_callback(callback(trainer))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def rows_of(dataset: PackedDataset) -> Dataset:
    """Columns `input_ids`, `labels`, `seq_lengths`, and `row` for the padded arm."""
    numbers = range(len(dataset))
    return Dataset(trl_table(dataset.__getitems__(numbers)).append_column("row", [list(numbers)]))


def padded_rows(dataset: PackedDataset) -> Callable[[list[dict[str, Any]]], dict[str, Any]]:
    """The padded arm: a collator of the samples of the same rows."""
    return lambda rows: padded(dataset.__getitems__([row["row"] for row in rows]), dataset.plan.capacity)


def tokenizer(size: int) -> PreTrainedTokenizerFast:
    """SFTTrainer wants one; the rows hold token ids already. Give yours."""
    words = {f"w{i}": i for i in range(size)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), pad_token="w0", eos_token="w1"
    )


if __name__ == "__main__":
    main(train)
