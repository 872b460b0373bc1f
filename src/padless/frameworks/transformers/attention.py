"""Attention under the name `padless`: isolated where boundaries are given, Transformers' own where they are not."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from padless.attention import varlen_attention
from padless.errors import PadlessError
from padless.frameworks.transformers.boundaries import Boundaries, current_call, read_boundaries
from padless.frameworks.transformers.masks import MaskRequest, SegmentRule, padless_mask
from padless.frameworks.transformers.positions import refuse_restarts
from padless.frameworks.transformers.towers import TOWER_NAME

NAME = "padless"
SCOPE = "_padless_scope"  # set on the modules of a prepared model that read the current call's boundaries

# A config with one of these has layers that carry a state from token to token, which no attention function can isolate.
_STATEFUL_CONFIGS = ("mamba_d_conv", "conv_L_cache", "linear_conv_kernel_dim", "conv1d_width", "ssm_state_size")

_read: WeakIdKeyDictionary = WeakIdKeyDictionary()  # cu_seq_lens_q -> its version and Boundaries: one read, all layers


def register() -> str:
    """Make `attn_implementation="padless"` known to Transformers; returns the name.

    Attention then follows `cu_seq_lens_q` / `cu_seq_lens_k` (int32, `[segments + 1]`) whenever a forward call has them,
    whatever its mask, cache or positions say. A call without them is an ordinary call (padded batches, generation) and
    goes to Transformers' own `sdpa` or `eager` attention; if its positions restart inside a row, it is refused.
    `prepare` does this and more: use it for whole models.

    Example:
        >>> register()
        'padless'
    """
    for name in (NAME, TOWER_NAME):
        AttentionInterface.register(name, padless_attention)
    AttentionMaskInterface.register(NAME, padless_mask)
    return NAME


@torch.compiler.disable  # boundaries are host numbers that change with every batch: compiled code must not guard them
def padless_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: MaskRequest | torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention in the signature of Transformers' `AttentionInterface`.

    Args:
        module: The attention layer that calls.
        query: `[rows, heads, length, size]`.
        key: `[rows, key heads, key length, size]`.
        value: `[rows, key heads, key length, value size]`.
        attention_mask: What `padless_mask` returned, a tensor of the caller's own, or None.
        dropout: Probability of dropping an attention weight.
        scaling: Multiplies the scores; `size ** -0.5` when None.
        kwargs: What the model passes on: boundaries, `sliding_window`, `softcap`, `s_aux`, `is_causal`, ...

    Returns:
        `[rows, length, heads, value size]`, and no weights.
    """
    boundaries = _boundaries(module, query, kwargs)
    if boundaries is None:
        return _ordinary(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
    rule = _rule(module, attention_mask, kwargs)
    _refuse_what_packing_cannot_do(module, query, key, kwargs)
    out = varlen_attention(
        _flat(query),
        _flat(key),
        _flat(value),
        boundaries.segments(rule.chunk),
        causal=rule.right == 0,
        window=(rule.left, rule.right),
        scale=scaling,
        softcap=kwargs.get("softcap") or 0.0,
        sinks=kwargs.get("s_aux"),
        dropout_p=dropout,
    )
    # Kernels differ in the layout of what they return; compiled code around this call must not see that.
    return out.contiguous().view(query.shape[0], query.shape[2], *out.shape[1:]), None


def _boundaries(module: torch.nn.Module, query: torch.Tensor, kwargs: dict[str, Any]) -> Boundaries | None:
    if getattr(module, SCOPE, False):
        call = current_call()
        if call is None:
            raise PadlessError(
                f"{type(module).__name__} of a prepared model was called outside of its model's forward: its "
                "boundaries are unknown, and guessing could let segments see each other; call the prepared model itself"
            )
        return call.boundaries
    return _boundaries_by_name(module, query, kwargs)


def _boundaries_by_name(module: torch.nn.Module, query: torch.Tensor, kwargs: dict[str, Any]) -> Boundaries | None:
    """Boundaries of a model that has the attention's name and was not prepared; read once for all its layers."""
    rows, length = query.shape[0], query.shape[2]
    given = kwargs.get("cu_seq_lens_q")
    if isinstance(given, torch.Tensor) and given in _read:
        version, boundaries = _read[given]
        if version == given._version and boundaries.total == rows * length:
            return boundaries
    boundaries = read_boundaries(kwargs, rows=rows, length=length, device=query.device)
    if boundaries is not None:
        config = getattr(module, "config", None)
        stateful = [name for name in _STATEFUL_CONFIGS if getattr(config, name, None) is not None]
        if stateful:
            raise PadlessError(
                f"this model has layers with a state ({stateful[0]} in its config): attention is isolated, they would "
                "leak; call padless.frameworks.transformers.prepare(model), which isolates them too"
            )
        if isinstance(given, torch.Tensor):
            _read[given] = (given._version, boundaries)
    return boundaries


def _rule(module: torch.nn.Module, mask: MaskRequest | torch.Tensor | None, kwargs: dict[str, Any]) -> SegmentRule:
    if isinstance(mask, MaskRequest):
        if mask.has_zeros:
            raise PadlessError(
                "boundaries and an attention_mask with zeros were both given: packed rows have no padding inside, and "
                "which of the two is meant is unknown; leave the mask out, and make a padded tail a segment of its own"
            )
        return mask.rule()
    if mask is not None:
        raise PadlessError(
            f"boundaries and a ready-made attention mask of shape {tuple(mask.shape)} were both given: the packed "
            "kernels would not follow the mask; give one of the two"
        )
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    window = kwargs.get("sliding_window")
    if window is not None and not causal:
        raise PadlessError(f"{type(module).__name__} has a two-sided window and no mask: its rule cannot be read")
    return SegmentRule(left=None if window is None else window - 1, right=0 if causal else None)


def _refuse_what_packing_cannot_do(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, kwargs: dict[str, Any]
) -> None:
    name = type(module).__name__
    if key.shape[2] != query.shape[2]:
        raise PadlessError(
            f"{name} has {query.shape[2]} queries and {key.shape[2]} keys in a packed row: cross attention and filled "
            "caches need boundaries of their own for the keys; run those calls unpacked"
        )
    if kwargs.get("position_bias") is not None:
        raise PadlessError(f"{name} adds a position bias to its scores, which the packed kernels do not carry")
    if kwargs.get("output_attentions"):
        raise PadlessError(
            "output_attentions=True needs the whole attention matrix, which packed attention never makes"
        )


def _ordinary(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: MaskRequest | torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    if not getattr(module, SCOPE, False):
        resets = isinstance(mask, MaskRequest) and mask.resets
        padding = mask.padding if isinstance(mask, MaskRequest) else None
        refuse_restarts(kwargs.get("position_ids"), padding, known=resets)
    needs_eager = any(kwargs.get(key) for key in ("softcap", "output_attentions")) or kwargs.get("s_aux") is not None
    attend = _eager(module) if needs_eager else sdpa_attention_forward
    dense = mask.dense("eager" if needs_eager else "sdpa") if isinstance(mask, MaskRequest) else mask
    return attend(module, query, key, value, dense, **kwargs)


def _eager(module: torch.nn.Module) -> Callable:
    """The model's own eager attention, which knows its softcap and its sinks; it lives beside the layer's class."""
    for kind in type(module).__mro__:
        found = getattr(sys.modules.get(kind.__module__), "eager_attention_forward", None)
        if found is not None:
            return found
    raise PadlessError(
        f"{type(module).__name__} asks for a softcap, sinks or attention weights in an unpacked call, and its model "
        'brings no eager attention that knows them; load the model with attn_implementation="eager" for such calls'
    )


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """`[rows, heads, length, size]` to `[tokens, heads, size]`; a view when there is one row."""
    return tensor.transpose(1, 2).flatten(0, 1)
