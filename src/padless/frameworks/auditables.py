"""Models and collators by name, for the command line's audit: everything here knows Transformers or TRL by name."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from padless.errors import PadlessError, require

COLLATORS = ("padless", "transformers", "trl")


def load_model(
    name: str,
    *,
    random: bool,
    attention: str | None,
    layers: int | None,
    dtype: str | None,
    cache: bool,
    vocabulary: int | None,
) -> Any:
    """A model by name, on the CPU, in evaluation mode.

    Args:
        name: `module:function` (returns an `nn.Module`), a local Transformers directory, or with `random` the name of
            an architecture.
        random: Tiny random weights of the named architecture.
        attention: Attention implementation; `"padless"` prepares the model for packed rows.
        layers: Keep only this many layers (directories).
        dtype: Name of a torch dtype; the model's own unless given (float32 for random ones).
        cache: Leave `config.use_cache` as it is; else switch it off, as trainers do.
        vocabulary: Token ids that a tiny random model must know.

    Raises:
        PadlessError: When there is no such model, or an option does not fit it.
    """
    if ":" in name and not Path(name).exists():
        model = called(name)
        if layers is not None or attention is not None:
            raise PadlessError(f"{name} builds its own model; --layers and --attn are for Transformers models")
    else:
        require("transformers", extra="hf", feature=f"padless audit {name}")
        model = _tiny(name, attention, layers, vocabulary) if random else _from_directory(name, attention, layers)
    import torch

    if dtype is not None:
        if not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise PadlessError(f"--dtype {dtype}: no such torch dtype; try float32, bfloat16 or float64")
        model = model.to(getattr(torch, dtype))
    if not cache and hasattr(model, "config"):
        model.config.use_cache = False
    if attention == "padless":
        from padless.frameworks.transformers import prepare

        prepare(model)
    return model


def collator(name: str) -> Callable[..., Any]:
    """A collator by name, or `module:function`: `collate(samples) -> inputs`.

    Raises:
        PadlessError: For an unknown name.
    """
    if name == "padless":
        from padless.frameworks.transformers import PackedCollator

        return PackedCollator()
    if name == "transformers":
        require("transformers", extra="hf", feature="--collator transformers")
        from transformers import DataCollatorWithFlattening

        return DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    if name == "trl":
        require("trl", extra="trl", feature="--collator trl")
        from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

        return DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    if ":" in name:
        return resolved(name)
    raise PadlessError(f"--collator {name}: expected {', '.join(COLLATORS)} or module:function")


def check_vocabulary(model: Any, samples: Sequence[Any], where: Any) -> None:
    """Refuse samples whose token ids a Transformers model cannot know.

    Raises:
        PadlessError: With the largest id and the size of the model's vocabulary.
    """
    if not is_transformers(model):
        return
    known = model.config.get_text_config().vocab_size
    largest = max(max(sample["input_ids"]) for sample in samples)
    if largest >= known:
        raise PadlessError(
            f"{where} holds token id {largest:,}, and the model's vocabulary ends at {known - 1:,}; "
            f"pack with the model's own tokenizer"
        )


def is_transformers(model: Any) -> bool:
    """Whether a model is one of Transformers' own, without importing it."""
    return any(base.__module__.startswith("transformers.") for base in type(model).__mro__)


def count_argument(model: Any) -> str | None:
    """The forward argument by which Trainer hands over the global number of targets, where it does."""
    takes = getattr(model, "accepts_loss_kwargs", True)
    return "num_items_in_batch" if is_transformers(model) and takes else None


def shift_of(model: Any) -> int:
    """0 for masked language models, 1 for causal ones."""
    return 0 if "MaskedLM" in type(model).__name__ else 1


def resolved(name: str) -> Any:
    """The object `module:attribute`, with the current folder importable."""
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path holds strings
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise PadlessError(f"{name}: {error}; expected module:function, importable from this folder") from error


def returned(name: str) -> Any:
    """What `module:function` returns; whatever it raises is named as its failure."""
    try:
        return resolved(name)()
    except PadlessError:
        raise
    except Exception as error:
        raise PadlessError(f"{name}() fails with {type(error).__name__}: {error}") from error


def called(name: str) -> Any:
    """What `module:function` returns, which must be an `nn.Module`."""
    import torch

    model = returned(name)
    if not isinstance(model, torch.nn.Module):
        raise PadlessError(f"{name}() returned {type(model).__name__}; expected an nn.Module")
    return model


def _tiny(name: str, attention: str | None, layers: int | None, vocabulary: int | None) -> Any:
    import torch

    from padless.frameworks.tiny_models import tiny_model

    if layers is not None:
        raise PadlessError("--random models are tiny already; --layers is for directories")
    shipped = None if attention == "padless" else attention
    try:
        return tiny_model(name, dtype=torch.float32, attention=shipped, vocabulary=vocabulary)
    except PadlessError:
        raise
    except Exception as error:
        raise PadlessError(f"{name} with --attn {attention}: {type(error).__name__}: {error}") from error


def _from_directory(name: str, attention: str | None, layers: int | None) -> Any:
    import transformers

    if not (Path(name) / "config.json").is_file():
        raise PadlessError(
            f"{name}: no directory with a config.json; give a local Transformers directory, module:function, or the "
            "name of an architecture with --random"
        )
    options = {} if attention in (None, "padless") else {"attn_implementation": attention}
    try:
        config = transformers.AutoConfig.from_pretrained(name, local_files_only=True)
        if layers is not None:
            _keep_layers(config, layers)
        masked = any("MaskedLM" in kind for kind in config.architectures or ())
        auto = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
        return auto.from_pretrained(name, config=config, local_files_only=True, **options).eval()
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise PadlessError(f"{name}: Transformers cannot load it: {str(error).splitlines()[0]}") from error


def _keep_layers(config: Any, layers: int) -> None:
    inner = config.get_text_config()
    if not 1 <= layers <= inner.num_hidden_layers:
        raise PadlessError(f"--layers {layers}: the model has {inner.num_hidden_layers}")
    inner.num_hidden_layers = layers
    if getattr(inner, "layer_types", None):
        inner.layer_types = inner.layer_types[:layers]
