"""Transformers' own PI0, as it is installed here: padding-free equals padded, and the tower sees real views only."""

from typing import Any

import pytest
import torch

from padless.errors import PadlessError
from padless.frameworks.pi05.transformers_pi0 import padding_free_transformers

transformers = pytest.importorskip("transformers")
if not hasattr(transformers, "PI0ForConditionalGeneration"):
    pytest.skip("this Transformers has no PI0", allow_module_level=True)

pytestmark = pytest.mark.interop

CHUNK, SIZE, TOKENS, IMAGE_ID = 5, 6, 4, 96


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tiny PI0 in float64; its norms, which cast to float32 in every precision, are made to stay in float64."""
    from transformers.models.gemma import modeling_gemma

    def norm(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)

    monkeypatch.setattr(modeling_gemma.GemmaRMSNorm, "forward", norm)
    language = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 8}
    text = {"model_type": "gemma", "hidden_size": 32, "intermediate_size": 64, "vocab_size": 97, **language}
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "patch_size": 8,
        "image_size": 16,
        "vision_use_head": False,
    }
    config = transformers.PI0Config(
        vlm_config={
            "model_type": "paligemma",
            "text_config": text,
            "vision_config": vision,
            "projection_dim": 32,
            "image_token_id": IMAGE_ID,
        },
        dit_config={"model_type": "gemma", "hidden_size": 24, "intermediate_size": 48, "vocab_size": 97, **language},
        chunk_size=CHUNK,
        max_state_dim=SIZE,
        max_action_dim=SIZE,
        loss_reduction="none",
    )
    torch.manual_seed(0)
    return transformers.PI0ForConditionalGeneration(config).double().eval()


def samples(there: list[list[bool]], prompts: list[int]) -> dict[str, torch.Tensor]:
    views = torch.tensor(there)
    lengths = [int(v.sum()) * TOKENS for v in views]
    count, width = len(prompts), max(a + b for a, b in zip(lengths, prompts, strict=True))
    ids, mask = torch.zeros(2, count, width, dtype=torch.long)
    for row, (images, prompt) in enumerate(zip(lengths, prompts, strict=True)):
        ids[row, :images] = IMAGE_ID
        ids[row, images : images + prompt] = torch.randint(1, 90, (prompt,))
        mask[row, : images + prompt] = 1
    return {
        "state": torch.randn(count, SIZE).double(),
        "noise": torch.randn(count, CHUNK, SIZE).double(),
        "timestep": torch.rand(count).double(),
        "input_ids": ids,
        "attention_mask": mask,
        "pixel_values": torch.randn(count, views.shape[1], 3, 16, 16).double(),
        "pixel_attention_mask": views,
    }


RAGGED = ([[True, True, False], [True, True, True], [False, True, False]], [5, 2, 7])


def test_losses_and_gradients_equal_the_padded_model(model) -> None:
    given = samples(*RAGGED) | {"actions": torch.randn(3, CHUNK, SIZE).double()}

    def run() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        model.zero_grad()
        loss = model(**given).loss
        loss.mean().backward()
        return loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    expected = run()
    handle = padding_free_transformers(model)
    found = run()
    assert (found[0] - expected[0]).abs().max() < 1e-9
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        assert (found[1][name] - gradient).abs().max() < 1e-9 * gradient.abs().max().clamp(min=1e-3), name
    assert (handle.views, handle.view_slots) == (6, 9)
    assert (len(handle.rows.prefix_calls), len(handle.rows.suffix_calls)) == (1, 2)  # type: ignore[union-attr]


def test_an_absent_camera_is_not_encoded(model) -> None:
    given = samples(*RAGGED)
    given["pixel_values"][~given["pixel_attention_mask"]] = float("nan")
    padding_free_transformers(model)
    assert torch.isfinite(model(**given).logits).all()


def test_inference_stays_what_it_was_and_remove_gives_everything_back(model) -> None:
    given = samples(*RAGGED)
    asked = {k: given[k] for k in given if k != "timestep"} | {"num_steps": 2}
    before = model.sample_actions(**asked)
    handle = padding_free_transformers(model)
    assert torch.equal(model.sample_actions(**asked), before)
    handle.remove()
    assert "forward" not in model.model.__dict__
    assert model.model.dit.config._attn_implementation == "sdpa"
    assert torch.equal(model.sample_actions(**asked), before)


def test_masks_and_prompts_that_disagree_about_cameras_are_refused(model) -> None:
    given = samples(*RAGGED)
    given["pixel_attention_mask"] = torch.ones(3, 3, dtype=torch.bool)
    padding_free_transformers(model)
    with pytest.raises(PadlessError, match="speak of different cameras"):
        model(**given)


def test_another_model_is_refused() -> None:
    with pytest.raises(PadlessError, match="is no PI0ForConditionalGeneration"):
        padding_free_transformers(torch.nn.Linear(1, 1))
