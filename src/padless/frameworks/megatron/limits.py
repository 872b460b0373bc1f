"""What a Megatron model and the installed versions cannot do with packed rows, said before training begins.

Megatron says some of it by an assert in the first forward pass, and most of it not at all.
"""

import dataclasses
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from padless.errors import PadlessError
from padless.masks.packed_seq_params import (
    TE_PAD_BETWEEN_SEQS,
    TE_PADDED_OFFSETS,
    installed_transformer_engine,
    parse_version,
)
from padless.rows import Batch
from padless.training.context_parallel import ContextParallel

EXACT_FLOAT32 = 1 << 24


def check_megatron(model: Any, batch: Batch | None = None, *, transformer_engine: str | None = None) -> None:
    """Raise, before the first step, for everything that `megatron_problems` finds.

    Raises:
        PadlessError: With every problem, and what to do about each.

    Example:
        >>> check_megatron(SimpleNamespace(transformer_impl="local", calculate_per_token_loss=True))
        Traceback (most recent call last):
            ...
        padless.errors.PadlessError: this model cannot train on packed rows: transformer_impl='local' ...
    """
    problems = megatron_problems(model, batch, transformer_engine=transformer_engine)
    if problems:
        raise PadlessError("this model cannot train on packed rows: " + "; ".join(problems))


def megatron_problems(model: Any, batch: Batch | None = None, *, transformer_engine: str | None = None) -> list[str]:
    """Why packed rows would fail, or train something else, with this model; empty when they would not.

    Args:
        model: A Megatron model, or its `TransformerConfig` where the model is not built yet.
        batch: A batch as it will come, for what depends on its alignment and padding.
        transformer_engine: Its version; the installed one unless given.

    Returns:
        One sentence or two each: what, what it would do, what to change.
    """
    config = getattr(model, "config", model)
    version = transformer_engine or installed_transformer_engine()
    found = [*_backend(model, config, version), *_objective(config), *_state(model)]
    if batch is not None:
        found += [*_padding(config, batch, version), *_alignment(config, batch)]
    return found


def _backend(model: Any, config: Any, version: str | None) -> Iterator[str]:
    local = [
        name for name, module in _modules(model) if _is_megatron(module) and type(module).__name__ == _LOCAL_ATTENTION
    ]
    if local:
        yield (
            f"{local[0]} ({len(local)} layers) is Megatron's own DotProductAttention, which asserts in the first "
            "forward pass that there are no packed rows; build the layers with get_gpt_layer_with_transformer_engine_"
            "spec(), or --transformer-impl transformer_engine"
        )
    elif getattr(config, "transformer_impl", None) == "local":
        yield (
            "transformer_impl='local' makes Megatron's own DotProductAttention, which asserts in the first forward "
            "pass that there are no packed rows; use --transformer-impl transformer_engine"
        )
    elif version is None:
        yield (
            "Transformer Engine is not installed, and no other attention of Megatron's takes packed rows; install "
            "transformer-engine[pytorch] 2.2 or later"
        )


def _objective(config: Any) -> Iterator[str]:
    if getattr(config, "calculate_per_token_loss", None) is False:
        yield (
            "calculate_per_token_loss is off: each micro-batch, and each context-parallel rank, would divide by its "
            "own number of targets, so a token's weight would depend on its neighbours in a row; pass "
            "--calculate-per-token-loss"
        )
    balancing = getattr(config, "moe_router_load_balancing_type", None) or ""
    if "seq_aux_loss" in ([balancing] if isinstance(balancing, str) else balancing):
        yield (
            "moe_router_load_balancing_type='seq_aux_loss' balances experts over whole rows and takes a row for one "
            "sequence; use 'aux_loss' or 'global_aux_loss'"
        )


def _state(model: Any) -> Iterator[str]:
    mixers = [name for name, module in _modules(model) if _is_megatron(module) and "Mamba" in type(module).__name__]
    if mixers and not {"seq_idx", "total_tokens"} & _packed_fields():
        yield (
            f"{mixers[0]} carries its state from one segment into the next: the installed PackedSeqParams has no "
            "seq_idx; install megatron-core 0.19 or later"
        )


def _padding(config: Any, batch: Batch, version: str | None) -> Iterator[str]:
    if batch.num_slots == batch.num_tokens:
        return
    if version is not None and parse_version(version) < TE_PADDED_OFFSETS:
        yield (
            f"Transformer Engine {version} knows no cu_seqlens_padded (1.10 does) and segments lie at padded offsets; "
            "install 2.2 or later"
        )
    named = (
        "pad_between_seqs" in _packed_fields()
        and version is not None
        and (parse_version(version) >= TE_PAD_BETWEEN_SEQS)
    )
    if _size(config, "context_parallel_size") > 1 and not named:
        yield (
            "with context parallel, padding at a row's end is not seen where pad_between_seqs cannot be said "
            "(Transformer Engine issue 3331); install Transformer Engine 2.2 and megatron-core 0.19 or later, or make "
            "rows without a tail"
        )
    if getattr(config, "mtp_num_layers", None) and _rolls_by_logical_offsets():
        yield (
            "multi-token prediction of the installed megatron-core moves labels by cu_seqlens_q, which is not where "
            "segments lie when there is padding between them: it would train on the tokens of other segments; make "
            "rows without padding (align=1, no capacity), or use padless.training for the loss"
        )


def _alignment(config: Any, batch: Batch) -> Iterator[str]:
    tp = _size(config, "tensor_model_parallel_size") if getattr(config, "sequence_parallel", False) else 1
    parallel = ContextParallel(ranks=_size(config, "context_parallel_size"), sequence_parallel=tp)
    if batch.align % parallel.align:
        yield (
            f"context parallel over {parallel.ranks} ranks cuts each segment into {parallel.align} chunks and segments "
            f"are aligned to {batch.align}; collate with align={math.lcm(batch.align, parallel.align)}"
        )
    if batch.num_slots % parallel.pad_to_multiple:
        yield (
            f"the {batch.num_slots:,} slots do not divide over {parallel.ranks} context-parallel x {tp} "
            f"sequence-parallel ranks; collate with pad_to_multiple={parallel.pad_to_multiple}"
        )
    if _size(config, "pipeline_model_parallel_size") > 1 and batch.num_slots >= EXACT_FLOAT32:
        yield (
            f"{batch.num_slots:,} slots in one micro-batch: Megatron hands cu_seqlens to the other pipeline stages as "
            f"float32, which is exact only below {EXACT_FLOAT32:,}; make smaller micro-batches"
        )


_LOCAL_ATTENTION = "DotProductAttention"


def _modules(model: Any) -> list[tuple[str, Any]]:
    return list(model.named_modules()) if hasattr(model, "named_modules") else []


def _is_megatron(module: Any) -> bool:
    return type(module).__module__.partition(".")[0] == "megatron"


def _size(config: Any, name: str) -> int:
    return getattr(config, name, 1) or 1


def _packed_fields() -> set[str]:
    from megatron.core.packed_seq_params import PackedSeqParams

    return {field.name for field in dataclasses.fields(PackedSeqParams)}


def _rolls_by_logical_offsets() -> bool:
    """Ask the installed function itself, with two segments of which the first is padded."""
    import torch
    from megatron.core.transformer.multi_token_prediction import roll_tensor

    logical, padded = (torch.tensor(offsets, dtype=torch.int32) for offsets in ([0, 3, 5], [0, 4, 6]))
    params = SimpleNamespace(
        cu_seqlens_q=logical, cu_seqlens_kv=logical, cu_seqlens_q_padded=padded, cu_seqlens_kv_padded=padded
    )
    rolled, _ = roll_tensor(torch.tensor([1, 2, 3, 0, 4, 5]), packed_seq_params=params)
    return rolled.tolist() != [2, 3, 0, 0, 5, 0]
