"""The real Trainer and TRL's real SFTTrainer: packed steps move the weights as a hand-written unpacked loop does."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import Trainer, TrainingArguments

from padless.frameworks.tiny_models import VOCABULARY, tiny_model
from padless.frameworks.transformers import PackedCollator, prepare

pytestmark = [pytest.mark.interop, pytest.mark.slow]

STEPS, ACCUMULATION, BATCH, RATE = 2, 2, 2, 0.05


def samples() -> list[dict[str, list[int]]]:
    generator = torch.Generator().manual_seed(11)
    lengths = [9, 4, 13, 2, 7, 5, 3, 11]
    ids = [torch.randint(3, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]
    return [{"input_ids": i, "labels": [-100, *i[1:]]} for i in ids]


def rows(texts: list[dict[str, list[int]]]) -> list[dict[str, list[int]]]:
    """Two samples a row, as `trl.pack_dataset` writes them."""
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return [
        {
            "input_ids": a["input_ids"] + b["input_ids"],
            "labels": a["labels"] + b["labels"],
            "seq_lengths": [len(a["input_ids"]), len(b["input_ids"])],
        }
        for a, b in pairs
    ]


def by_hand(model: Any, steps: list[list[dict[str, list[int]]]]) -> dict[str, torch.Tensor]:
    """Plain gradient descent, one sample per forward, the mean over the targets of each step."""
    for texts in steps:
        targets = sum(len(text["input_ids"]) - 1 for text in texts)
        for text in texts:
            logits = model(input_ids=torch.tensor([text["input_ids"]]), use_cache=False).logits[0]
            target = torch.tensor(text["input_ids"][1:])
            (torch.nn.functional.cross_entropy(logits[:-1].float(), target, reduction="sum") / targets).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= RATE * parameter.grad
                parameter.grad = None
    return dict(model.named_parameters())


def settings(folder: Path, batch: int) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "max_steps": STEPS,
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": ACCUMULATION,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "weight_decay": 0.0,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "remove_unused_columns": False,
        "train_sampling_strategy": "sequential",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def compare(trained: Any, expected: dict[str, torch.Tensor], start: dict[str, torch.Tensor]) -> None:
    for name, parameter in trained.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name].detach(), rtol=0, atol=1e-7)
    assert any(not torch.equal(expected[name], start[name]) for name in start)


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "lfm2"])
def test_trainer_takes_the_steps_of_an_unpacked_loop(name, tmp_path):
    model = tiny_model(name)
    plain = copy.deepcopy(model)
    start = {key: value.detach().clone() for key, value in model.named_parameters()}
    prepare(model)
    texts = samples()
    trainer = Trainer(
        model=model,
        args=TrainingArguments(**settings(tmp_path, BATCH)),
        train_dataset=Dataset.from_list(texts),
        data_collator=PackedCollator(),
    )
    trainer.train()
    per_step = BATCH * ACCUMULATION
    compare(model, by_hand(plain, [texts[:per_step], texts[per_step:]]), start)


def test_trainer_takes_packed_rows_with_gradient_checkpointing(tmp_path):
    model = tiny_model("bamba")
    plain = copy.deepcopy(model)
    start = {key: value.detach().clone() for key, value in model.named_parameters()}
    prepare(model)
    texts = samples()
    arguments = TrainingArguments(
        **settings(tmp_path, 1), gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False}
    )
    trainer = Trainer(
        model=model, args=arguments, train_dataset=Dataset.from_list(rows(texts)), data_collator=PackedCollator()
    )
    trainer.train()
    compare(model, by_hand(plain, [texts[:4], texts[4:]]), start)


@pytest.mark.parametrize("batch", [1, 2])
def test_sft_trainer_takes_packed_rows(batch, tmp_path):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = {f"w{i}": i for i in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), pad_token="w0", eos_token="w2"
    )
    model = tiny_model("llama")
    plain = copy.deepcopy(model)
    start = {key: value.detach().clone() for key, value in model.named_parameters()}
    prepare(model)
    texts = samples() if batch == 1 else samples() + samples()[::-1]
    arguments = SFTConfig(
        **settings(tmp_path, batch),
        packing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        gradient_checkpointing=False,
    )
    trainer = SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(rows(texts)),
        data_collator=PackedCollator(),
        processing_class=tokenizer,
    )
    trainer.train()
    per_step = 2 * batch * ACCUMULATION
    compare(model, by_hand(plain, [texts[:per_step], texts[per_step:]]), start)


def test_trainer_takes_rows_of_a_packed_store(tmp_path):
    from padless import TokenStore, plan
    from padless.training import PackedDataset

    texts = [text["input_ids"] for text in samples()]
    store = TokenStore.write(tmp_path / "store", texts, vocab_size=VOCABULARY)
    dataset = PackedDataset(store, plan=plan(store.lengths, 16))
    model = tiny_model("llama")
    plain = copy.deepcopy(model)
    start = {key: value.detach().clone() for key, value in model.named_parameters()}
    prepare(model)
    arguments = TrainingArguments(**settings(tmp_path, 1))
    Trainer(model=model, args=arguments, train_dataset=dataset, data_collator=PackedCollator()).train()
    steps = [[int(i) for row in pair for i in dataset.plan.row(row)[0]] for pair in ((0, 1), (2, 3))]
    compare(model, by_hand(plain, [[{"input_ids": texts[i]} for i in step] for step in steps]), start)
