"""Models for `padless bench`: real ones from a directory, or random ones of a size that a laptop can train."""

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from padless.errors import PadlessError, require
from padless.frameworks.transformers_batch import transformers_batch
from padless.measure.trainee import Trainee
from padless.rows import Batch

if TYPE_CHECKING:
    import torch

SIZES: Mapping[str, Mapping[str, Any]] = {
    "llama-1m": {
        "vocab_size": 1000,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
    },
    "llama-20m": {
        "vocab_size": 8000,
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
    },
    "llama-125m": {
        "vocab_size": 32000,
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    },
    "llama-1b": {
        "vocab_size": 32000,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 16,
    },
}


def load_trainee(name: str, *, dtype: str = "float32", device: str = "cpu", vocabulary: int | None = None) -> Trainee:
    """A model by name, ready to be measured in every way.

    Args:
        name: A key of `SIZES` (random weights), a local Transformers directory, or `module:function`.
        dtype: Name of a torch dtype.
        device: Where it runs.
        vocabulary: How many token ids a model of random weights knows; None is as many as its size usually does.

    Raises:
        PadlessError: When there is no such model, or it is no causal language model of Transformers.

    Example:
        >>> trainee = load_trainee("llama-1m")
        >>> trainee.name, trainee.vocabulary, round(trainee.size / 1e6, 1)
        ('llama-1m', 1000, 1.1)
    """
    require("transformers", extra="hf", feature="padless bench")
    import torch

    if not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise PadlessError(f"--dtype {dtype}: no such torch dtype; try float32, bfloat16 or float64")
    return make_trainee(_load(name, vocabulary).to(device=device, dtype=getattr(torch, dtype)), name=name)


def make_trainee(model: Any, *, name: str) -> Trainee:
    """A causal language model of Transformers in four ways that share its weights.

    The padded ways and the dense mask run on the model as it came; packed rows run on a twin that `prepare` made ready.
    The twin has modules of its own and the same parameters.

    Args:
        model: A `PreTrainedModel`; put into evaluation mode, because with dropout no two ways would agree.
        name: What to call it.
    """
    from padless.frameworks.transformers import prepare

    if not callable(getattr(model, "get_output_embeddings", None)) or model.get_output_embeddings() is None:
        raise PadlessError(
            f"{name} is {type(model).__name__}: padless bench measures causal language models of Transformers; "
            "measure other models with padless.measure.measure_arms and a Trainee of your own"
        )
    model.eval()
    model.config.use_cache = False
    twin = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    prepare(twin)
    return Trainee(
        name=name,
        vocabulary=model.get_input_embeddings().num_embeddings,
        device=str(next(model.parameters()).device),
        parameters=list(model.parameters()),
        padded=lambda batch: model(input_ids=_rectangle(batch)).logits,
        masked=lambda batch: model(input_ids=_rectangle(batch), attention_mask=_mask(batch)).logits,
        dense=lambda batch: model(**_only(batch, "input_ids", "position_ids")).logits,
        packed=lambda batch: twin(**_without_labels(batch)).logits,
    )


def _load(name: str, vocabulary: int | None) -> Any:
    from padless.frameworks.auditables import load_model

    if name in SIZES:
        sizes = SIZES[name]
        return _random(sizes if vocabulary is None else {**sizes, "vocab_size": vocabulary})
    if ":" not in name and "/" not in name and "." not in name:
        raise PadlessError(f"no model {name!r}; expected {', '.join(SIZES)}, a local directory, or module:function")
    return load_model(name, random=False, attention=None, layers=None, dtype=None, cache=False, vocabulary=None)


def _random(sizes: Mapping[str, Any]) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = LlamaConfig(
            **sizes, num_key_value_heads=sizes["num_attention_heads"], max_position_embeddings=1 << 17, use_cache=False
        )
        return LlamaForCausalLM(config)


def _rectangle(batch: Batch) -> "torch.Tensor":
    """int64 `[rows, width]`."""
    return batch.input_ids.reshape(len(batch.row_offsets) - 1, -1).long()


def _mask(batch: Batch) -> "torch.Tensor":
    return (batch.segment_ids != 0).long().reshape(len(batch.row_offsets) - 1, -1)


def _only(batch: Batch, *names: str) -> dict[str, Any]:
    given = transformers_batch(batch)
    return {name: given[name] for name in names}


def _without_labels(batch: Batch) -> dict[str, Any]:
    return {name: value for name, value in transformers_batch(batch).items() if name != "labels"}
