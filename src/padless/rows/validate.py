"""What makes a batch impossible. Cheap on purpose: it runs for every batch of a training run.

Offsets are checked in full (they are short). Per-token arrays are checked where a mistake would corrupt training in
silence: labels at the boundaries and on padding, ranks inside segments.
"""

from typing import Any

import numpy as np

from padless.errors import PadlessError
from padless.rows.tensors import host, is_tensor


def check(batch: Any) -> None:
    """Raise PadlessError unless the arrays of `batch` fit together.

    Tensors on a device are checked for shapes only: reading their values would wait for the device.
    """
    _check_shapes(batch)
    on_device = is_tensor(batch.input_ids) and batch.input_ids.device.type != "cpu"
    if on_device:
        return
    _check_offsets(batch)
    _check_labels(batch)
    if batch.ranks is not None:
        _check_ranks(batch)


def _fail(reason: str) -> None:
    raise PadlessError(f"impossible batch: {reason}")


def _check_shapes(batch: Any) -> None:
    T = batch.input_ids.shape[0]
    S = batch.sample_ids.shape[0]
    per_slot = {"labels": batch.labels, "loss_weights": batch.loss_weights, "ranks": batch.ranks}
    for name, array in per_slot.items():
        if array is not None and tuple(array.shape) != (T,):
            _fail(f"{name} has shape {tuple(array.shape)} where input_ids has {(T,)}")
    if tuple(batch.position_ids.shape[-1:]) != (T,) or len(batch.position_ids.shape) > 2:
        _fail(f"position_ids has shape {tuple(batch.position_ids.shape)}; expected [{T}] or [axes, {T}]")
    entries = (S if batch.static_segments is None else batch.static_segments) + 1
    shapes = tuple(batch.cu_seqlens.shape), tuple(batch.cu_seqlens_padded.shape)
    if S == 0 or entries <= S or shapes != ((entries,), (entries,)):
        _fail(
            f"{S} segments (sample_ids) and static_segments={batch.static_segments} need cu_seqlens and "
            f"cu_seqlens_padded of {max(entries, S + 1)} entries each; got {shapes[0]} and {shapes[1]}"
        )
    if batch.rule.has_ranks and batch.ranks is None:
        _fail(f"{batch.rule} needs ranks and there are none")
    if not batch.rule.has_ranks and batch.ranks is not None:
        _fail(f"{batch.rule} takes its ranks from the index, and other ranks were given")


def _check_offsets(batch: Any) -> None:
    logical, padded = host(batch.cu_seqlens), host(batch.cu_seqlens_padded)
    S, T = batch.num_segments, batch.num_slots
    if logical.dtype != np.int32 or padded.dtype != np.int32:
        _fail(f"cu_seqlens must be int32, as kernels take them; got {logical.dtype} and {padded.dtype}")
    lengths = np.diff(logical[: S + 1])
    if logical[0] != 0 or padded[0] != 0 or (lengths <= 0).any():
        _fail("cu_seqlens must start at 0 and grow: every segment holds at least one token")
    room = np.diff(padded[: S + 1])
    if (room < lengths).any():
        i = int(np.argmax(room < lengths))
        _fail(f"segment {i} holds {lengths[i]} tokens and has room for {room[i]}")
    if padded[S] > T:
        _fail(f"segments end at slot {padded[S]} and there are {T} slots")
    if (logical[S:] != logical[S]).any() or (padded[S:] != padded[S]).any():
        _fail("entries of cu_seqlens behind the last segment must repeat its end")
    if batch.align < 1 or (padded[:S] % batch.align).any():
        _fail(f"not every segment starts at a multiple of align={batch.align}")
    if batch.max_seqlen < lengths.max():
        _fail(f"max_seqlen={batch.max_seqlen} is less than the longest segment, {lengths.max()}")
    rows = host(batch.row_offsets)
    if rows[0] != 0 or rows[-1] != S or (np.diff(rows) <= 0).any():
        _fail(f"row_offsets must grow from 0 to {S}, no row empty; got {rows[:8].tolist()}...")


def _padding(batch: Any) -> np.ndarray:
    """The slots that hold no real token."""
    starts, lengths = host(batch.starts).astype(np.int64), host(batch.lengths)
    ends = starts + lengths
    gaps = np.append(starts[1:], batch.num_slots) - ends
    offsets = np.cumsum(gaps) - gaps
    return np.arange(int(gaps.sum())) + np.repeat(ends - offsets, gaps)


def _check_labels(batch: Any) -> None:
    labels = host(batch.labels)
    first = labels[host(batch.starts)]
    if (first != -100).any():
        i = int(np.argmax(first != -100))
        _fail(f"the first token of segment {i} is a target; nothing in its segment could predict it (-100)")
    padding = _padding(batch)
    if len(padding) and (labels[padding] != -100).any():
        _fail("a padding slot is a target; padding is masked by its position (-100), whatever its id")


def _check_ranks(batch: Any) -> None:
    ranks = host(batch.ranks)
    padding = _padding(batch)
    if len(padding) and (ranks[padding] != -1).any():
        _fail("ranks on padding must be -1: it belongs to no segment")
    real = np.ones(len(ranks), dtype=bool)
    real[padding] = False
    if (ranks[real] < 0).any():
        _fail("ranks of real tokens must not be negative")
    if batch.rule.visibility is not None:
        if ranks.max() >= len(batch.rule.visibility):
            _fail(f"rank {ranks.max()} is outside the {len(batch.rule.visibility)}-rank visibility table")
        return
    drops = np.diff(ranks) < 0
    drops[host(batch.starts)[1:] - 1] = False
    drops &= real[1:]
    if drops.any():
        slot = int(np.argmax(drops))
        _fail(f"ranks fall from slot {slot} to {slot + 1} inside a segment; an order must not go back")
