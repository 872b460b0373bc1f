"""The gate: what happens before and after the forward of a prepared model.

It reads and checks the boundaries once, takes them out of the call so that no tower or loss trips over them, and keeps
them where the model's own layers find them. It is a pair of forward hooks, so saving, copying, PEFT and Trainer see the
same model as before.
"""

import functools
import inspect
from typing import Any

import torch

from padless.errors import PadlessError
from padless.frameworks.transformers.boundaries import (
    KEYS,
    Call,
    current_call,
    enter,
    read_boundaries,
    replay,
)
from padless.frameworks.transformers.media_positions import give_media_positions
from padless.frameworks.transformers.positions import packed_positions, refuse_restarts, refuse_segment_masks
from padless.rows import MediaLayout

FIRST = "_padless_first_position"
LAYOUT = "_padless_media_layout"
GATED = "_padless_gate"
_uncompiled: Any = torch.compiler.disable  # boundaries change with every batch: compiled code must not guard them
_CACHES = ("cache", "past_key_values", "cache_params", "layer_past", "state")


def install_gate(module: torch.nn.Module, *, first_position: int, layout: MediaLayout | None) -> None:
    """Put the gate before and after `module.forward`, once.

    Args:
        module: A prepared model, or the model inside it.
        first_position: The position of a first token.
        layout: Of its images and videos, for models that rotate by several axes.
    """
    setattr(module, FIRST, first_position)
    setattr(module, LAYOUT, layout)
    if not getattr(module, GATED, False):
        module.register_forward_pre_hook(_enter, with_kwargs=True, prepend=True)
        module.register_forward_hook(_leave, with_kwargs=True, always_call=True)
        setattr(module, GATED, True)


@_uncompiled
def _enter(module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
    outer = current_call()
    told = any(kwargs.get(key) is not None for key in KEYS)
    if outer is not None and not told:
        return None  # the inner model of a call that came through the gate already
    arguments = _by_name(module, args, kwargs)
    tokens = _first_given(arguments, "input_ids", "inputs_embeds")
    rows, length = tokens.shape[:2]
    boundaries = read_boundaries(arguments, rows=rows, length=length, device=tokens.device)
    enter(Call(boundaries=boundaries, owner=module, outer=outer))
    _replay_checkpoints(module)
    if boundaries is None:
        refuse_restarts(arguments.get("position_ids"), arguments.get("attention_mask"))
        refuse_segment_masks(arguments.get("attention_mask"))
        return None
    for key in KEYS:
        arguments.pop(key, None)
    parameters = inspect.signature(module.forward).parameters
    _drop_full_mask(arguments)
    _refuse_caches(arguments, settable="use_cache" in parameters)
    if getattr(module, LAYOUT) is not None:
        give_media_positions(arguments, boundaries, getattr(module, LAYOUT))
    if "position_ids" in parameters:
        arguments["position_ids"] = packed_positions(
            arguments.get("position_ids"), boundaries, rows=rows, length=length, first=getattr(module, FIRST)
        )
    else:
        packed_positions(arguments.pop("position_ids", None), boundaries, rows=rows, length=length, first=0)
    return (), arguments


@_uncompiled
def _leave(module: torch.nn.Module, *_: Any) -> None:
    call = current_call()
    if call is not None and call.owner is module:
        enter(call.outer)


def _by_name(module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [p.name for p in inspect.signature(module.forward).parameters.values()]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _first_given(arguments: dict[str, Any], *names: str) -> torch.Tensor:
    for name in names:
        if arguments.get(name) is not None:
            return arguments[name]
    raise PadlessError(
        f"a prepared model was called without {' or '.join(names)}: nothing says how many tokens there are"
    )


def _drop_full_mask(arguments: dict[str, Any]) -> None:
    """A mask of ones says nothing; any other mask beside boundaries is a second opinion."""
    mask = arguments.pop("attention_mask", None)
    if mask is None:
        return
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2 or not bool((mask == 1).all()):
        shape = tuple(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise PadlessError(
            f"boundaries and an attention_mask ({shape}) that is not all ones were both given: which of the two is "
            "meant is unknown; leave the mask out, and make a padded tail a segment of its own"
        )


def _refuse_caches(arguments: dict[str, Any], *, settable: bool) -> None:
    cache = next((arguments[name] for name in _CACHES if arguments.get(name) is not None), None)
    if cache is None:
        if arguments.get("use_cache"):
            raise PadlessError(
                "use_cache=True in a packed call: one cache would hold all segments as one sequence; leave it out, or "
                "use padless.frameworks.transformers.prefill, which hands back a cache per prompt"
            )
        if settable:
            arguments["use_cache"] = False
    elif cache.get_seq_length() > 0:
        raise PadlessError(
            f"a packed call was given a cache that holds {cache.get_seq_length()} tokens: which segment they belong to "
            "is unknown; packed rows start from an empty cache"
        )


class _Replaying:
    """A gradient checkpointing function whose recomputation knows the call it belongs to."""

    def __init__(self, checkpoint: Any):
        self.checkpoint = checkpoint

    def __call__(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        return self.checkpoint(functools.partial(replay, current_call(), function), *args, **kwargs)


def _replay_checkpoints(model: torch.nn.Module) -> None:
    """Checkpointing may be switched on at any time, so this looks at every call; it is a no-op once done."""
    for module in model.modules():
        checkpoint = module.__dict__.get("_gradient_checkpointing_func")
        if checkpoint is not None and not isinstance(checkpoint, _Replaying):
            module._gradient_checkpointing_func = _Replaying(checkpoint)  # type: ignore[assignment]
