"""Vision towers whose frames or windows are segments of one long row: one varlen call instead of a loop over windows.

Transformers hands such a tower's boundaries to attention functions that have "flash" in their name, in one call; for
all others its own code cuts the row up and calls attention once per frame or window. So the same attention function is
registered under a second name, which only the towers are given; their forward stays Transformers' own.
"""

import inspect
from typing import Any

import torch
from transformers import PreTrainedModel

TOWER_NAME = "padless_flash"


def pack_towers(model: torch.nn.Module, decoder: torch.nn.Module) -> tuple[str, ...]:
    """Let every tower outside the decoder whose attention takes `cu_seqlens` run it in one call, in place.

    Returns:
        The towers' names.
    """
    inside = set(decoder.modules())
    towers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, PreTrainedModel) and module not in inside and decoder not in set(module.modules())
    }
    packed = tuple(name for name, tower in towers.items() if _attends_by_boundaries(tower))
    for name in packed:
        config: Any = towers[name].config
        config._attn_implementation = TOWER_NAME
    return packed


def _attends_by_boundaries(tower: PreTrainedModel) -> bool:
    return any(
        "attention" in type(module).__name__.lower() and "cu_seqlens" in inspect.signature(module.forward).parameters
        for module in tower.modules()
    )
