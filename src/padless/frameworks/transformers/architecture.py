"""What a model is made of, as far as packing cares: read from modules and config, never guessed from a name."""

import dataclasses
from typing import Any

import torch
from transformers import PreTrainedModel

from padless.errors import PadlessError

# Layers that mix tokens by code of their own and are right on one segment at a time. Layers that own an `nn.Conv1d`
# (Mamba and its kin, gated delta nets, short convolutions, RG-LRU) are found by that and need no entry here.
_SEGMENTWISE_CLASSES = (
    "BloomAttention",
    "MptAttention",
    "FalconAttention",
    "MiniMaxLightningAttention",
    "RwkvSelfAttention",
    "RwkvFeedForward",
)

# Kinds of layers, in Transformers' words, that boundaries or segments isolate at any length. Others may look back in
# ways that only show beyond the length of a probe (keys compressed by blocks, indexers).
_KNOWN_LAYER_TYPES = (
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "linear_attention",
    "conv",
    "hybrid",
    "hybrid_sliding",
    "dense",
    "sparse",
    "mlp",
    "moe",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """What `inspect_model` found.

    Attributes:
        decoder: The module whose layers see text tokens; towers for images and sound lie outside.
        own_mixers: Names of layers that mix tokens by code of their own, under the decoder.
        first_position: The position of a first token: 0, or `padding_idx + 1` for RoBERTa and its kin.
        notes: What is special about it, one sentence each.
    """

    decoder: PreTrainedModel
    own_mixers: tuple[str, ...]
    first_position: int
    notes: tuple[str, ...]


def inspect_model(model: Any) -> Architecture:
    """Look at a model's modules and config.

    Args:
        model: A `PreTrainedModel`.

    Raises:
        PadlessError: When the architecture cannot be packed; the message names the part and the reason.
    """
    config = model.config
    name = type(model).__name__
    if getattr(config, "is_encoder_decoder", False):
        raise PadlessError(
            f"{name} cannot be packed: it is an encoder-decoder, whose cross attention needs a second set of "
            "boundaries (decoder segments against encoder segments) that Transformers' calls have no names for"
        )
    if getattr(config, "model_type", "") == "falcon" and config.alibi:
        raise PadlessError(
            f"{name} cannot be packed: with alibi=True it adds linear biases, rounded to bfloat16 by position in the "
            "row, into its mask, so a segment's result would depend on where it lies"
        )
    unknown = set(getattr(config.get_text_config(), "layer_types", None) or ()) - set(_KNOWN_LAYER_TYPES)
    if unknown:
        raise PadlessError(
            f"{name} cannot be packed: its layers of type {', '.join(sorted(unknown))} are not known to "
            "padless, which may look back in ways that boundaries do not stop and a short probe does not show"
        )
    decoder = _decoder(model)
    mixers = tuple(found for found, module in decoder.named_modules() if _mixes_by_itself(module))
    return Architecture(
        decoder=decoder,
        own_mixers=_outermost(mixers),
        first_position=_first_position(decoder),
        notes=_notes(config.get_text_config(), mixers),
    )


def _decoder(model: Any) -> Any:
    """The text model: Transformers' own lookup, where it finds a model and not an output layer of that name."""
    found = model.base_model.get_decoder()
    return found if isinstance(found, PreTrainedModel) else model.base_model


def _mixes_by_itself(module: torch.nn.Module) -> bool:
    owns_convolution = any(isinstance(child, torch.nn.Conv1d) for child in module.children())
    return owns_convolution or any(kind.__name__ in _SEGMENTWISE_CLASSES for kind in type(module).__mro__)


def _outermost(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if not any(name.startswith(f"{other}.") for other in names))


def _first_position(decoder: torch.nn.Module) -> int:
    for module in decoder.modules():
        table = getattr(module, "position_embeddings", None)
        if hasattr(module, "create_position_ids_from_input_ids") and isinstance(table, torch.nn.Embedding):
            return 0 if table.padding_idx is None else table.padding_idx + 1
    return 0


def _notes(config: Any, mixers: tuple[str, ...]) -> tuple[str, ...]:
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    found = {
        f"attention windows of {window} tokens, counted inside segments": bool(window)
        and (not kinds or "sliding_attention" in kinds),
        "attention chunks, counted from each segment's start": "chunked_attention" in kinds,
        "softcapped attention scores": bool(getattr(config, "attn_logit_softcapping", None)),
        "layers that mix tokens by code of their own": bool(mixers),
        "experts: the auxiliary loss is a statistic of all tokens of the batch, padding included, as ever": bool(
            getattr(config, "output_router_logits", False)
        ),
    }
    return tuple(note for note, holds in found.items() if holds)
