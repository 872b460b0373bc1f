"""Images and text in one packed row: Qwen-VL models give each sample what it gets alone, with three axes or four."""

import copy
from typing import Any

import pytest
import torch

from padless.frameworks.tiny_models import IMAGE_TOKENS, tiny_model
from padless.frameworks.transformers import prepare

IMAGE, START, END = (IMAGE_TOKENS[f"{name}_token_id"] for name in ("image", "vision_start", "vision_end"))
PIXELS = 3 * 2 * 4 * 4


def sample(before: list[int], height: int, width: int, after: list[int], seed: int) -> dict[str, torch.Tensor]:
    """Text around one image of `height x width` patches, four of which make a token."""
    ids = torch.tensor([*before, START, *[IMAGE] * (height * width // 4), END, *after])
    generator = torch.Generator().manual_seed(seed)
    return {
        "input_ids": ids[None],
        "mm_token_type_ids": (ids == IMAGE).long()[None],
        "pixel_values": torch.randn(height * width, PIXELS, generator=generator, dtype=torch.float64),
        "image_grid_thw": torch.tensor([[1, height, width]]),
    }


SAMPLES = [sample([5, 6], 4, 4, [7, 8, 9], 1), sample([], 4, 8, [12, 13], 2)]  # the second starts with its image
LENGTHS = [each["input_ids"].shape[1] for each in SAMPLES]


def rotary(model: Any, each: dict[str, torch.Tensor]) -> torch.Tensor:
    asked = {name: each[name] for name in ("input_ids", "mm_token_type_ids", "image_grid_thw")}
    return model.model.get_rope_index(**asked)[0]


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("axes", [3, 4])
def test_images_and_text_come_out_as_alone(name, axes):
    shipped = tiny_model(name)
    model = copy.deepcopy(shipped)
    prepare(model)
    positions = torch.cat([rotary(shipped, each) for each in SAMPLES], dim=-1)
    if axes == 4:
        text = torch.cat([torch.arange(n) for n in LENGTHS])
        positions = torch.cat([text[None, None], positions])
    row = {key: torch.cat([each[key] for each in SAMPLES], dim=1 if "ids" in key else 0) for key in SAMPLES[0]}
    offsets = torch.tensor([0, LENGTHS[0], sum(LENGTHS)], dtype=torch.int32)
    with torch.no_grad():
        packed = model(**row, position_ids=positions, cu_seq_lens_q=offsets, cu_seq_lens_k=offsets).logits[0]
        for each, got in zip(SAMPLES, packed.split(LENGTHS), strict=True):
            alone = shipped(**each, position_ids=rotary(shipped, each)).logits[0]
            torch.testing.assert_close(got, alone, rtol=0, atol=1e-12)


def test_image_tokens_that_see_each_other_are_refused():
    """Gemma 3 lets the tokens of an image see each other, which no boundary says."""
    from transformers import AutoConfig, Gemma3ForConditionalGeneration

    from padless.errors import PadlessError
    from padless.frameworks.tiny_models import ARCHITECTURES, COMMON

    text = {**COMMON, **ARCHITECTURES["gemma3_text"].config}
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model("gemma3", text_config=text, vision_config={**vision, "image_size": 28})
    model = Gemma3ForConditionalGeneration(config).double().eval()
    prepare(model)
    offsets = torch.tensor([0, 4, 9], dtype=torch.int32)
    kinds = torch.tensor([[0, 1, 1, 0, 0, 0, 1, 1, 0]])
    with pytest.raises(PadlessError, match="mask with the part"):
        model(input_ids=torch.arange(5, 14)[None], token_type_ids=kinds, cu_seq_lens_q=offsets)
