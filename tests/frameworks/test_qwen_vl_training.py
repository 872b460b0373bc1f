"""Packed Qwen-VL training is the padded one: the example's curves, and Transformers' own Trainer."""

import copy
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainingArguments

from padless.errors import PadlessError
from padless.frameworks.dialects import DIALECTS, dialect
from padless.frameworks.qwen_vl import MediaCollator, layout_of, token_loss
from padless.frameworks.transformers import prepare
from padless.rows import collate_media

from .qwen_samples import all_kinds, alone, shipped

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.slow
def test_the_example_trains_padded_and_packed_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    curves = importlib.import_module("train_qwen_vl").main(tmp_path, dtype=torch.float64, steps=6)
    np.testing.assert_allclose(curves["packed"], curves["padded"], rtol=1e-7)
    assert curves["packed"][-1] < 0.8 * curves["packed"][0]
    printed = capsys.readouterr().out
    assert "isolation proven, gradients proven" in printed
    assert "violated" not in printed
    assert (tmp_path / "audit.html").stat().st_size > 1000


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_trainer_moves_the_weights_as_a_loop_over_samples_does(name: str, tmp_path: Path) -> None:
    """Two micro-batches of unequal targets, one of them without any; a step of plain gradient descent."""
    model = shipped(name)
    ready = copy.deepcopy(model)
    prepare(ready)
    layout = layout_of(model)
    samples = all_kinds(apart=layout.frames_apart)
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=1,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=0.1,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0.0,
        remove_unused_columns=False,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(
        model=ready,
        args=arguments,
        train_dataset=samples,  # type: ignore[arg-type]
        data_collator=MediaCollator(layout=layout),
        compute_loss_func=token_loss,
    ).train()

    targets = sum(sum(label != -100 for label in each["labels"]) for each in samples)
    for each in samples:
        labels = torch.tensor(each["labels"][1:])
        (
            torch.nn.functional.cross_entropy(alone(model, each, layout)[:-1], labels, reduction="sum") / targets
        ).backward()
    moved: dict[str, Any] = dict(ready.named_parameters())
    for parameter, before in model.named_parameters():
        expected = before - 0.1 * before.grad
        scale = max(float((0.1 * before.grad).norm()), 1e-12)
        assert float((moved[parameter] - expected).detach().norm()) <= 1e-6 * scale, parameter


def test_a_call_without_targets_has_a_loss_of_zero() -> None:
    outputs = {"logits": torch.randn(1, 3, 5, requires_grad=True)}
    loss = token_loss(outputs, torch.full((1, 3), -100))
    loss.backward()
    assert loss.item() == 0


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"input_ids": [[1, 2], [3, 4]]}, "one sample at a time"),
        ({"input_ids": [1, 2], "attention_mask": [1, 0]}, "padded before packing"),
    ],
)
def test_padded_batches_are_refused(broken: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        MediaCollator(layout=layout_of(shipped("qwen2_5_vl")))([broken])


def test_images_without_pixels_are_refused() -> None:
    """The model would embed their placeholders as text and train on."""
    collator = MediaCollator(layout=layout_of(shipped("qwen2_5_vl")))
    samples = [{k: v for k, v in each.items() if "pixel" not in k} for each in all_kinds(apart=False)]
    with pytest.raises(PadlessError, match="images and no pixel_values"):
        collator(samples)


def test_what_a_processor_gives_is_taken_as_it_is() -> None:
    collator = MediaCollator(layout=layout_of(shipped("qwen2_5_vl")))
    processed = {
        "input_ids": torch.tensor([[5, 90, 6]]),
        "attention_mask": torch.ones(1, 3),
        "mm_token_type_ids": torch.tensor([[0, 1, 0]]),
        "pixel_values": torch.zeros(4, 96),
        "image_grid_thw": torch.tensor([[1, 2, 2]]),
    }
    row = collator([processed, [processed, {"input_ids": np.array([7, 8])}]])
    assert row["input_ids"].tolist() == [[5, 90, 6, 5, 90, 6, 7, 8]]
    assert row["cu_seq_lens_q"].tolist() == [0, 3, 6, 8]
    assert "mm_token_type_ids" not in row


@pytest.mark.parametrize("name", DIALECTS)
def test_no_dialect_loses_media_in_silence(name: str) -> None:
    layout = layout_of(shipped("qwen2_5_vl"))
    seen = {"input_ids": [5, 90, 6], "image_grid_thw": [[1, 2, 2]], "pixel_values": np.zeros((4, 96))}
    batch = collate_media([seen], layout, capacity=3)
    if name in ("plain", "transformers"):
        assert {"pixel_values", "image_grid_thw", "image_cu_seqlens"} <= set(dialect(name)(batch))
    else:
        with pytest.raises(ValueError, match="media"):
            dialect(name)(batch)
