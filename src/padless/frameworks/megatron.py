"""Megatron-Core's dialect: `PackedSeqParams` (thd), labels shifted inside segments, a loss mask that fits them.

The fields, and what they mean on that side, are `padless.masks.packed_seq_params`.
"""

from typing import Any

from padless.frameworks.refusals import refuse_ranks
from padless.masks import megatron_packed_seq_params
from padless.rows import Batch


def megatron_batch(batch: Batch) -> dict[str, Any]:
    """What Megatron's `GPTModel.forward` takes for one micro-batch of packed rows.

    Args:
        batch: Rows of one data-parallel rank, before context-parallel slicing.

    Returns:
        `tokens, labels, position_ids int64[1, T]` (labels shifted inside each segment, -100 where there is no target),
        `loss_mask float32[1, T]` aligned with labels (weights where the batch has some), `attention_mask None`, and
        `packed_seq_params`.

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
    refuse_ranks(batch, "Megatron")
    params = megatron_packed_seq_params(batch)
    labels = batch.shifted_labels()
    weights = batch.shifted_loss_weights()
    positions = batch.position_ids if batch.position_ids.ndim == 1 else batch.position_ids[0]
    return {
        "tokens": _row(batch.input_ids, "int64"),
        "labels": _row(labels, "int64"),
        "loss_mask": _row(labels != -100 if weights is None else weights, "float32"),
        "position_ids": _row(positions, "int64"),
        "attention_mask": None,
        "packed_seq_params": params,
    }


def _row(values: Any, dtype: str) -> Any:
    """Values over T slots as a `[1, T]` tensor."""
    import torch

    return torch.as_tensor(values).to(getattr(torch, dtype))[None]
