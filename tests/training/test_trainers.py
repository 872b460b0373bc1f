"""The rows in the hands of other people's trainers: every row once, resumed exactly."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from padless.frameworks.transformers_batch import transformers_batch
from padless.training import PackedDataset, PackedLoader, RowSampler

pytestmark = pytest.mark.interop


def tiny_llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=500,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            use_cache=False,
        )
    )


class Recorder:
    """A dialect that remembers which tokens went by; as tuples, so that it survives pickling and comparing."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []

    def __call__(self, batch: Any) -> dict[str, Any]:
        kwargs = transformers_batch(batch)
        self.seen.append(tuple(kwargs["input_ids"][0].tolist()))
        return kwargs


def rows_of(dataset: PackedDataset) -> list[tuple[int, ...]]:
    return sorted(tuple(row.input_ids.tolist()) for row in dataset)


def test_the_trainer_of_transformers(dataset: PackedDataset, tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    recorder = Recorder()
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=1,
        num_train_epochs=1,
        remove_unused_columns=False,
        report_to=[],
        logging_steps=1,
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=tiny_llama(),
        args=arguments,
        train_dataset=dataset,  # type: ignore[arg-type]
        data_collator=recorder,  # type: ignore[arg-type]
    )
    trainer.train()
    assert sorted(recorder.seen) == rows_of(dataset)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == len(dataset)
    assert all(4 < loss < 8 for loss in losses), "near ln(500) = 6.2, as an untrained model has it"


def test_accelerate(dataset: PackedDataset) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = tiny_llama()
    sampler = RowSampler(dataset, rows=2, drop_last=False)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=transformers_batch)  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    tokens = 0
    for kwargs in loader:
        accelerator.backward(model(**kwargs).loss)
        optimizer.step()
        optimizer.zero_grad()
        tokens += kwargs["input_ids"].numel()
    assert tokens == int(dataset.plan.lengths.sum())


def test_lightning_saves_and_restores_the_position(dataset: PackedDataset, tmp_path: Path) -> None:
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = tiny_llama()
            self.seen: list[tuple[int, ...]] = []

        def training_step(self, batch: dict[str, Any], _: int) -> torch.Tensor:
            self.seen.append(tuple(batch["input_ids"][0].tolist()))
            return self.model(**batch).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def loader() -> PackedLoader:
        return PackedLoader(RowSampler(dataset, rows=4, drop_last=True), collate_fn=transformers_batch)

    def run(steps: int, checkpoint: Path | None = None, save: Path | None = None) -> list[tuple[int, ...]]:
        model = Model()
        trainer = lightning.Trainer(
            max_steps=steps,
            max_epochs=-1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, train_dataloaders=loader(), ckpt_path=None if checkpoint is None else str(checkpoint))
        if save is not None:
            trainer.save_checkpoint(save)
        return model.seen

    whole = run(10)  # an epoch has 7 steps
    assert len(set(whole)) == 10
    first = run(3, save=tmp_path / "three.ckpt")
    rest = run(10, checkpoint=tmp_path / "three.ckpt")
    assert first + rest == whole
