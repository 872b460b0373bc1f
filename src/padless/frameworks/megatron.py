"""Megatron-Core's dialect: `PackedSeqParams` (thd), labels shifted inside segments, a loss mask that fits them.

What the fields mean (Megatron-LM d98e8a64, Transformer Engine d0067d0d):

- `cu_seqlens_*` are prefix sums of real lengths; `cu_seqlens_*_padded` are offsets into the slots and end at T.
- `pad_between_seqs` comes out of object identity where a version does not name it: Transformer Engine compares the
  two tensors with `is`, so without padding both fields hold the same tensor.
- Without `total_tokens` there is no `seq_idx` and Mamba layers carry their state across segments. It is set wherever
  the installed version has the field.
- RoPE reads positions from `cu_seqlens_*_padded`, and takes a table as long as the whole stream for one of absolute
  positions. Megatron makes its table `max_seqlen_*` long, so that is the longest padded extent and never more, not
  even for static shapes.
- Context parallelism cuts each padded extent into 2 * cp chunks: collate with `align=2 * cp`.

Padding behind the last aligned extent of a row becomes segments of its own, short ones, so that attention over padding
is not quadratic and no real segment grows.
"""

import dataclasses
from typing import Any

import numpy as np

from padless.errors import PadlessError, require
from padless.frameworks.refusals import refuse_ranks
from padless.rows import Batch
from padless.rows.layout import PAD_SEGMENT, cover


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
    params = packed_seq_params(batch)
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


def packed_seq_params(batch: Batch) -> Any:
    """`PackedSeqParams` with the fields that the installed megatron-core has."""
    require("megatron.core", extra="megatron", feature="PackedSeqParams")
    from megatron.core.packed_seq_params import PackedSeqParams

    logical, padded = megatron_cu_seqlens(batch)
    cu_seqlens_padded = _tensor(padded)
    padding_inside = not np.array_equal(logical, padded)
    cu_seqlens = _tensor(logical) if padding_inside else cu_seqlens_padded
    max_seqlen = int(np.diff(padded).max())
    values = {
        "qkv_format": "thd",
        "cu_seqlens_q": cu_seqlens,
        "cu_seqlens_kv": cu_seqlens,
        "cu_seqlens_q_padded": cu_seqlens_padded,
        "cu_seqlens_kv_padded": cu_seqlens_padded,
        "max_seqlen_q": max_seqlen,
        "max_seqlen_kv": max_seqlen,
        "total_tokens": batch.num_slots,
        "pad_between_seqs": padding_inside,
    }
    known = {field.name for field in dataclasses.fields(PackedSeqParams)}
    return PackedSeqParams(**{name: value for name, value in values.items() if name in known})


def megatron_cu_seqlens(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Logical and physical boundaries over all T slots, padding behind aligned extents as short segments.

    Returns:
        Two `int32[P + 1]` arrays; physical ones are multiples of `batch.align`.

    Raises:
        PadlessError: When T is no multiple of `batch.align`.

    Example:
        >>> from padless import collate
        >>> megatron_cu_seqlens(collate([[[5, 6, 7], [8, 9]]], align=2, capacity=10))
        (array([0, 3, 5, 9], dtype=int32), array([ 0,  4,  6, 10], dtype=int32))
    """
    if batch.num_slots % batch.align:
        raise PadlessError(
            f"{batch.num_slots} slots are no multiple of align={batch.align}, so the last extent could not be cut into "
            "2 * cp chunks; collate with a capacity or multiple= that align divides"
        )
    host = batch.numpy()
    lengths = host.lengths.astype(np.int64)
    extents = -(-lengths // batch.align) * batch.align
    longest = max(PAD_SEGMENT // batch.align, 1) * batch.align
    padded, ids = cover(host.starts.astype(np.int64), extents, batch.num_slots, longest)
    logical_lengths = np.diff(padded)
    logical_lengths[ids > 0] = lengths
    logical = np.concatenate([[0], np.cumsum(logical_lengths)])
    return logical.astype(np.int32), padded.astype(np.int32)


def _tensor(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array)


def _row(values: Any, dtype: str) -> Any:
    """Values over T slots as a `[1, T]` tensor."""
    import torch

    return torch.as_tensor(values).to(getattr(torch, dtype))[None]
