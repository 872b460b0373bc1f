"""Rows in the language of Megatron-Core and Transformer Engine: `PackedSeqParams` (thd).

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
- Whether attention is causal, and its window, is no part of it: the model says so, or `transformer_engine_kwargs`.

What versions of Transformer Engine lack (Megatron then leaves the field out without a word):

- before 1.10 there are no `cu_seqlens_*_padded`: rows with padding between segments would be read at wrong offsets;
- before 2.2 there is no `pad_between_seqs`: object identity decides, which does not see padding at the end of a context
  parallel rank's part (Transformer Engine issue 3331).

Padding behind the last aligned extent of a row becomes segments of its own, short ones, so that attention over padding
is not quadratic and no real segment grows. Static batches have a fixed number of entries.
"""

import dataclasses
import functools
import importlib.metadata
import re
from typing import Any

import numpy as np

from padless.errors import PadlessError, require
from padless.rows import Batch
from padless.rows.layout import PAD_SEGMENT, cover
from padless.rows.tensors import host, is_tensor, to_torch

TE_PADDED_OFFSETS = (1, 10)
TE_PAD_BETWEEN_SEQS = (2, 2)


def megatron_packed_seq_params(batch: Batch, *, cp_group: Any = None) -> Any:
    """`megatron.core.packed_seq_params.PackedSeqParams` with the fields that the installed version has.

    Args:
        batch: Rows of one data-parallel rank, before context-parallel slicing.
        cp_group: The context-parallel group of this micro-batch, where a schedule gives each its own; its size goes to
            `local_cp_size`. None leaves the model's own group in force.

    Returns:
        `total_tokens` is set where the version knows it, and with it the version makes `seq_idx`.

    Raises:
        MissingExtraError: Without megatron-core.
        PadlessError: For rules that offsets cannot say, when T is no multiple of the batch's `align`, when a group was
            given to a version without the field, or when the installed Transformer Engine cannot read these offsets.

    Example:
        >>> from padless import collate
        >>> params = megatron_packed_seq_params(collate([[5, 6, 7], [8, 9]], align=4))
        >>> params.cu_seqlens_q.tolist(), params.cu_seqlens_q_padded.tolist(), params.max_seqlen_q
        ([0, 3, 5], [0, 4, 8], 4)
    """
    require("megatron.core", extra="megatron", feature="PackedSeqParams")
    from megatron.core.packed_seq_params import PackedSeqParams

    values = {**_thd_fields(batch), "total_tokens": batch.num_slots}
    refuse_transformer_engine(installed_transformer_engine(), values["pad_between_seqs"])
    known = {field.name for field in dataclasses.fields(PackedSeqParams)}
    if cp_group is not None:
        if "local_cp_size" not in known:
            raise PadlessError(
                "the installed PackedSeqParams has no local_cp_size, so every micro-batch would run in the model's own "
                "context-parallel group; install megatron-core 0.16 or later, or schedule with one group for all"
            )
        values |= {"cp_group": cp_group, "local_cp_size": cp_group.size()}
    return PackedSeqParams(**{name: value for name, value in values.items() if name in known})


def transformer_engine_kwargs(batch: Batch) -> dict[str, Any]:
    """Keyword arguments of `transformer_engine.pytorch.DotProductAttention.forward`, version 2.2 and later.

    Returns:
        What `megatron_packed_seq_params` says, and the rule: `attn_mask_type` (`"padding_causal"` or `"padding"`) and
        `window_size` `(left, right)`, inclusive, -1 for no limit.

    Raises:
        MissingExtraError: Without torch.
        PadlessError: As `megatron_packed_seq_params`, and when an older Transformer Engine is installed.

    Example:
        >>> from padless import Rule, collate
        >>> kwargs = transformer_engine_kwargs(collate([[5, 6, 7]], rule=Rule(window=(127, None))))
        >>> kwargs["attn_mask_type"], kwargs["window_size"]
        ('padding_causal', (127, 0))
    """
    version = installed_transformer_engine()
    if version is not None and parse_version(version) < TE_PAD_BETWEEN_SEQS:
        raise PadlessError(
            f"Transformer Engine {version} does not take pad_between_seqs, which came with 2.2; install 2.2 or later"
        )
    causal = batch.rule.kind == "causal"
    left, right = (-1 if limit is None else limit for limit in batch.rule.window or (None, None))
    return {
        **_thd_fields(batch),
        "attn_mask_type": "padding_causal" if causal else "padding",
        "window_size": (left, 0 if causal else right),
    }


@functools.cache
def installed_transformer_engine() -> str | None:
    """The version of the installed Transformer Engine, or None."""
    try:
        return importlib.metadata.version("transformer-engine")
    except importlib.metadata.PackageNotFoundError:
        return None


def refuse_transformer_engine(version: str | None, padding_between: bool) -> None:
    """Raise when this version of Transformer Engine would read padded offsets as dense ones.

    Args:
        version: As `importlib.metadata` has it; None when there is none, and nothing to refuse.
        padding_between: Whether padding lies between segments or behind them.

    Example:
        >>> refuse_transformer_engine("1.9.0", padding_between=False)
    """
    if version is not None and padding_between and parse_version(version) < TE_PADDED_OFFSETS:
        raise PadlessError(
            f"Transformer Engine {version} knows no cu_seqlens_padded, which came with 1.10, and Megatron leaves them "
            "out: attention would read every segment behind the first padding at a wrong place. Install 1.10 or later "
            "(2.2 for pad_between_seqs), or make batches without padding: align=1, no capacity, no pad_to_multiple"
        )


def parse_version(version: str) -> tuple[int, int]:
    """Major and minor number, for comparisons.

    Example:
        >>> parse_version("2.9.0+cu12")
        (2, 9)
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise PadlessError(f"{version!r} is no version that begins with two numbers")
    return int(found[1]), int(found[2])


def padded_cu_seqlens(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Logical and physical boundaries over all T slots, padding behind aligned extents as short segments.

    Returns:
        Two `int32[P + 1]` arrays; physical ones are multiples of `batch.align`. Segment i holds the first
        `logical[i + 1] - logical[i]` slots from `physical[i]`.

    Raises:
        PadlessError: When T is no multiple of `batch.align`.

    Example:
        >>> from padless import collate
        >>> padded_cu_seqlens(collate([[[5, 6, 7], [8, 9]]], align=2, capacity=10))
        (array([0, 3, 5, 9], dtype=int32), array([ 0,  4,  6, 10], dtype=int32))
    """
    if batch.num_slots % batch.align:
        raise PadlessError(
            f"{batch.num_slots} slots are no multiple of align={batch.align}, so the last extent could not be cut into "
            "2 * cp chunks; collate with a capacity or pad_to_multiple that align divides"
        )
    lengths = host(batch.lengths).astype(np.int64)
    extents = -(-lengths // batch.align) * batch.align
    longest = max(PAD_SEGMENT // batch.align, 1) * batch.align
    starts = host(batch.starts).astype(np.int64)
    padded, ids = cover(starts, extents, batch.num_slots, longest=longest, most=batch.static_segments)
    logical_lengths = np.diff(padded)
    logical_lengths[ids > 0] = lengths
    logical = np.concatenate([[0], np.cumsum(logical_lengths)])
    return logical.astype(np.int32), padded.astype(np.int32)


def _thd_fields(batch: Batch) -> dict[str, Any]:
    _refuse(batch)
    logical, padded = padded_cu_seqlens(batch)
    device = batch.input_ids.device if is_tensor(batch.input_ids) else None
    cu_seqlens_padded = to_torch(padded, device)
    padding_inside = not np.array_equal(logical, padded)
    cu_seqlens = to_torch(logical, device) if padding_inside else cu_seqlens_padded
    max_seqlen = int(np.diff(padded).max())
    return {
        "qkv_format": "thd",
        "cu_seqlens_q": cu_seqlens,
        "cu_seqlens_kv": cu_seqlens,
        "cu_seqlens_q_padded": cu_seqlens_padded,
        "cu_seqlens_kv_padded": cu_seqlens_padded,
        "max_seqlen_q": max_seqlen,
        "max_seqlen_kv": max_seqlen,
        "pad_between_seqs": padding_inside,
    }


def _refuse(batch: Batch) -> None:
    if batch.rule.has_ranks or batch.rule.chunk is not None:
        raise PadlessError(
            f"{batch.rule} cannot be said in thd offsets: they hold whole segments, which Megatron's RoPE counts from "
            "0, and one mask type for all; use padless.masks.calls (varlen calls), flex, slices or dense"
        )
