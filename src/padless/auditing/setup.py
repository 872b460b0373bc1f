"""From the arguments of `audit` to a context: what is not given is read from the model."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from padless.auditing.context import Context
from padless.auditing.default_collate import default_collate
from padless.auditing.samples import LENGTHS, make_samples, masked_first, ordinary_tokens
from padless.auditing.subject import Subject, default_call, default_logits
from padless.errors import PadlessError

# Special tokens that stand for themselves in a perturbation: whatever else is special, a model may count (image slots).
_PLAIN = ("eos_token_id", "bos_token_id", "pad_token_id", "unk_token_id")


def prepare(
    model: torch.nn.Module,
    *,
    collate: Callable[..., Any] | None,
    loss: Callable[..., Any] | None,
    samples: Sequence[dict[str, Any]] | None,
    lengths: Sequence[int] | None,
    vocab_size: int | None,
    eod: int | None,
    call: Callable[..., Any] | None,
    logits: Callable[..., Any] | None,
    count_argument: str | None,
    shift: int,
    position_axes: int | None,
    seed: int,
) -> Context:
    """Fill in what was not given.

    Raises:
        PadlessError: When the vocabulary cannot be told, or a given sample is malformed.
    """
    config = text_config(model)
    vocabulary = vocab_size or _vocabulary(model, config)
    special = special_tokens(getattr(model, "config", None)) | special_tokens(config)
    frozen = frozenset(token for name, token in special.items() if name not in _PLAIN)
    end = eod if eod is not None else special.get("eos_token_id")
    if end is not None and not 0 <= end < vocabulary:
        end = None
    forbidden = frozenset(token for token in special.values() if token != end)
    if samples is not None:
        made = [_checked(i, sample) for i, sample in enumerate(samples)]
    else:
        sizes = lengths or LENGTHS
        made = make_samples(vocab_size=vocabulary, seed=seed, eod=end, forbidden=forbidden, lengths=sizes)
        made = made if shift else masked_first(made)
    return Context(
        subject=Subject(
            model,
            collate=collate or default_collate(model),
            call=call or default_call,
            logits=logits or default_logits,
            loss=loss,
            count_argument=count_argument,
        ),
        samples=made,
        ordinary=ordinary_tokens(vocabulary, forbidden | ({end} if end is not None else set())),
        frozen=frozen,
        eod=end,
        shift=shift,
        position_axes=position_axes or _position_axes(config),
        seed=seed,
    )


def require_module(model: Any) -> None:
    """Raise unless the model is an `nn.Module`."""
    if not isinstance(model, torch.nn.Module):
        raise PadlessError(f"an audit needs an nn.Module; got {type(model).__name__}")


def text_config(model: torch.nn.Module) -> Any:
    """The config of the language model, which multi-modal models keep inside theirs."""
    config = getattr(model, "config", None)
    return getattr(config, "text_config", None) or config


def special_tokens(config: Any) -> dict[str, int]:
    """`*_token_id` entries of a config; of a list, the first."""
    found = {}
    for name, value in (vars(config) if hasattr(config, "__dict__") else {}).items():
        if not name.endswith(("_token_id", "_token_index")):
            continue
        first = value[0] if isinstance(value, list | tuple) and value else value
        if isinstance(first, int) and not isinstance(first, bool) and first >= 0:
            found[name] = first
    return found


def _vocabulary(model: torch.nn.Module, config: Any) -> int:
    size = getattr(config, "vocab_size", None)
    if isinstance(size, int):
        return size
    tables = [m.num_embeddings for m in model.modules() if isinstance(m, torch.nn.Embedding)]
    if not tables:
        raise PadlessError("the model has no config and no embedding to tell its vocabulary; pass vocab_size=")
    return max(tables)


def _position_axes(config: Any) -> int | None:
    for name in ("rope_scaling", "rope_parameters"):
        section = getattr(config, name, None)
        if isinstance(section, dict) and section.get("mrope_section"):
            return len(section["mrope_section"])
    return None


def _checked(index: int, sample: dict[str, Any]) -> dict[str, Any]:
    tokens = [int(t) for t in sample["input_ids"]]
    labels = [int(t) for t in sample.get("labels", tokens)]
    if not tokens or len(labels) != len(tokens):
        raise PadlessError(f"sample {index}: {len(tokens)} tokens and {len(labels)} labels; give as many of both")
    return dict(sample) | {"input_ids": tokens, "labels": labels}
