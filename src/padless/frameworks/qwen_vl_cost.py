"""What tokens and patches cost in a Qwen-VL model, counted from its weights."""

from typing import Any

import torch

from padless.errors import PadlessError
from padless.frameworks.qwen_vl import layout_of
from padless.training import TowersCost


def towers_cost(model: Any) -> TowersCost:
    """Forward matmul FLOPs per token and per patch, for `RowSampler(cost=...)` and `MediaDataset.row_costs`.

    Every weight of a linear layer counts two per row that passes it: text layers and output once per token, the
    tower's blocks once per patch, its mergers once per merged token. Attention counts its two products; of a causal
    segment half of the pairs, of a frame all of them, of a window layer those of one full window per patch. Backward
    takes twice as much of everything, which changes no ratio.

    Args:
        model: A Qwen-VL model without experts; `with torch.device("meta")` is enough.

    Raises:
        PadlessError: For a model whose feed-forward weights are no linear layers (experts).

    Example:
        >>> from padless.frameworks.tiny_models import tiny_model
        >>> cost = towers_cost(tiny_model("qwen2_5_vl"))
        >>> cost.linear > cost.patch > cost.quadratic
        True
    """
    layout = layout_of(model)
    text, vision = model.config.get_text_config(), model.config.vision_config
    decoder, tower = model.model.language_model, model.model.visual
    if getattr(text, "num_experts", None):
        raise PadlessError(
            f"{type(model).__name__} has experts, of which a token passes some: count its cost by hand and give "
            "TowersCost(linear=..., quadratic=..., patch=..., patch_pair=...)"
        )
    width = tower.blocks[0].attn.qkv.in_features
    whole = len(tower.blocks) if layout.window is None else len(vision.fullatt_block_indexes)
    in_windows = 0 if layout.window is None else (layout.window * layout.merge) ** 2 * (len(tower.blocks) - whole)
    heads = text.num_attention_heads * (getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
    attending = sum(kind == "full_attention" for kind in getattr(text, "layer_types", None) or ()) or len(
        decoder.layers
    )
    blocks, embedding = _weights(tower.blocks, torch.nn.Linear), _weights(tower, torch.nn.Conv3d)
    mergers = _weights(tower, torch.nn.Linear) - blocks
    return TowersCost(
        linear=2 * (_weights(decoder, torch.nn.Linear) + model.lm_head.weight.numel()),
        quadratic=2 * heads * attending,
        patch=2 * (blocks + embedding + mergers / layout.merge**2) + 4 * width * in_windows,
        patch_pair=4 * width * whole,
    )


def _weights(module: torch.nn.Module, kind: type[torch.nn.Module]) -> int:
    """Weights of all layers of one kind."""
    layers = (each for each in module.modules() if isinstance(each, kind))
    return sum(own.numel() for each in layers for name, own in each.named_parameters(recurse=False) if name == "weight")
