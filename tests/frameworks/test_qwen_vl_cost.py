"""The cost of both towers against torch's own count of FLOPs, and what it is good for."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from padless.frameworks.qwen_vl_cost import towers_cost

from .qwen_samples import END, PIXELS, START, image, shipped


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize(("height", "width", "words"), [(8, 8, 12), (16, 12, 60), (4, 4, 90)])
def test_flops_are_those_that_torch_counts(name: str, height: int, width: int, words: int) -> None:
    """Sides are whole windows; the eager attention computes all pairs of a causal segment, twice as many as count."""
    model = shipped(name, attention="eager")
    ids = torch.tensor([[*range(3, 3 + words % 80), *[5] * (words - words % 80), START, *image(height, width), END]])
    patches, tokens = height * width, ids.shape[1]
    call = {"pixel_values": torch.zeros(patches, PIXELS).double(), "image_grid_thw": torch.tensor([[1, height, width]])}
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=ids, mm_token_type_ids=(ids == 90).long(), **call, use_cache=False)
    cost = towers_cost(model)
    expected = cost.linear * tokens + 2 * cost.quadratic * tokens**2
    expected += cost.patch * patches + cost.patch_pair * patches**2
    assert expected == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_experts_are_refused() -> None:
    model = shipped("qwen2_5_vl")
    model.config.get_text_config().num_experts = 4
    with pytest.raises(ValueError, match="experts"):
        towers_cost(model)
