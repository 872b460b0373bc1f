"""The collator of an audit that was given none: one flat row, each argument that the model's forward names."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from padless.auditing.samples import Sample
from padless.rows import Batch, collate


def default_collate(model: torch.nn.Module) -> Callable[..., dict[str, Any]]:
    """A collator for `model`: `input_ids [1, T]`, and of the rest what its forward takes by name.

    Offered are `position_ids`, `labels`, `segment_ids` (all `[1, T]`), `seq_idx` (`[1, T]` int32), `cu_seqlens`
    (`[S + 1]` int32) and `max_seqlen`. `cu_seqlens` covers every slot: padding is a segment of its own there.
    """
    import inspect

    names = frozenset(inspect.signature(model.forward).parameters)

    def make(samples: Sequence[Sample], capacity: int | None = None) -> dict[str, Any]:
        batch = collate([list(samples)], capacity=capacity, pad_to_multiple=capacity or 1)
        return {name: value for name, value in offers(batch).items() if name == "input_ids" or name in names}

    return make


def offers(batch: Batch) -> dict[str, Any]:
    """Everything a batch can say, as tensors with a leading row axis where models expect one."""
    packed = batch.torch()
    cu_seqlens, _ = packed.covering_cu_seqlens()
    return {
        "input_ids": packed.input_ids[None],
        "position_ids": packed.position_ids[None],
        "labels": packed.labels[None],
        "segment_ids": packed.segment_ids[None],
        "seq_idx": packed.segment_ids[None].to(torch.int32),
        "cu_seqlens": cu_seqlens,
        "max_seqlen": packed.max_seqlen,
    }
