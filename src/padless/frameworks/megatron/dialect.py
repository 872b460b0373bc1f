"""Megatron-Core's dialect: `PackedSeqParams` (thd), labels shifted inside segments, a loss mask that fits them.

The fields, and what they mean on that side, are `padless.masks.packed_seq_params`.
"""

from typing import Any

from padless.frameworks.refusals import refuse_media, refuse_ranks
from padless.masks import megatron_packed_seq_params
from padless.rows import IGNORED, Batch
from padless.training.context_parallel import ContextParallel, Shard


def megatron_batch(
    batch: Batch, *, parallel: ContextParallel | None = None, cp_rank: int = 0, cp_group: Any = None
) -> dict[str, Any]:
    """What Megatron's `GPTModel.forward` takes for one micro-batch of packed rows.

    Args:
        batch: Rows of one data-parallel rank, before context-parallel slicing.
        parallel: How its slots are divided over context-parallel ranks; None leaves them whole, for who divides them.
        cp_rank: Which of those ranks this is.
        cp_group: The context-parallel group of this micro-batch, where a schedule gives each its own.

    Returns:
        `tokens, labels, position_ids int64[1, T]` (labels shifted inside each segment, -100 where there is no target),
        `loss_mask float32[1, T]` aligned with labels (weights where the batch has some), `attention_mask None`, and
        `packed_seq_params`. With `parallel` the four hold this rank's T / ranks slots; the parameters speak of all T,
        as Megatron takes them.

    Raises:
        MissingExtraError: Without torch or megatron-core.
        PadlessError: When T is no multiple of the batch's `align`, or the rule is none that a model's configuration
            can say.

    Example:
        >>> from padless import collate
        >>> packed = megatron_batch(collate([[5, 6, 7], [8, 9]], align=4))
        >>> packed["labels"].tolist(), packed["packed_seq_params"].cu_seqlens_q_padded.tolist()
        ([[6, 7, -100, -100, 9, -100, -100, -100]], [0, 4, 8])
    """
    fields = shifted_fields(batch)
    if parallel is not None:
        shard = Shard(batch=batch, parallel=parallel, rank=cp_rank)
        fields = {name: shard.take(values) for name, values in fields.items()}
    params = megatron_packed_seq_params(batch, cp_group=cp_group)
    rows = {name: values[None] for name, values in fields.items()}
    return {**rows, "attention_mask": None, "packed_seq_params": params}


def shifted_fields(batch: Batch) -> dict[str, Any]:
    """`tokens, labels, loss_mask, position_ids`, each a tensor `[T]`; labels and mask speak of the next token."""
    import torch

    refuse_media(batch, "Megatron")
    refuse_ranks(batch, "Megatron")
    labels = batch.shifted_labels()
    weights = batch.shifted_loss_weights()
    positions = batch.position_ids if batch.position_ids.ndim == 1 else batch.position_ids[0]
    return {
        "tokens": torch.as_tensor(batch.input_ids).to(torch.int64),
        "labels": torch.as_tensor(labels).to(torch.int64),
        "loss_mask": torch.as_tensor(labels != IGNORED if weights is None else weights).to(torch.float32),
        "position_ids": torch.as_tensor(positions).to(torch.int64),
    }
