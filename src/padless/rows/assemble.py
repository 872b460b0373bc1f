"""Arrays of tokens and lengths to a batch, with no Python loop over segments."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from padless.errors import PadlessError
from padless.rows.batch import IGNORED, Batch
from padless.rows.layout import Layout, cover, lay_out
from padless.rows.ranks import ranks_of
from padless.rows.rule import Rule

RAMP_SLOTS = 128
"""Pieces of at least this many slots on average get their positions by copies, which need no second array."""


def batch_from_segments(
    tokens: np.ndarray,
    targets: np.ndarray | None,
    lengths: np.ndarray,
    row_offsets: np.ndarray | None = None,
    *,
    sample_ids: np.ndarray | None = None,
    starts: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    capacity: int | None = None,
    align: int = 1,
    pad_to_multiple: int = 1,
    static: tuple[int, int] | None = None,
    rule: Rule | None = None,
    prefix_lengths: np.ndarray | None = None,
    blocks: np.ndarray | None = None,
    position_ids: np.ndarray | None = None,
    position_start: int = 0,
    positions: Literal["restart", "continue"] = "restart",
    loss_weights: Literal["per-sample"] | np.ndarray | None = None,
    pad_id: int = 0,
    dtype: Any = np.int64,
    media: Mapping[str, Any] | None = None,
    copy: bool = True,
) -> Batch:
    """Build a batch from tokens that already lie back to back. `collate` is this for lists of samples.

    Args:
        tokens: int[N], the real tokens of all segments, back to back, in batch order.
        targets: bool[N], True where the token is a target; None: every token but the first of its segment.
        lengths: int[S], tokens per segment.
        row_offsets: int[R + 1], row r holds segments `row_offsets[r]:row_offsets[r + 1]`; None: one row.
        sample_ids: int[S]; None: -1 throughout.
        starts: int[S], first token of each segment inside its sample; None: 0, nothing was split.
        labels: int[N], unshifted labels (-100 where there is no target) instead of `targets`.
        capacity: Pad every row to this many slots. None: no tails, rows end where their last segment ends.
        align: Round every segment up to a multiple of this many slots.
        pad_to_multiple: Round the whole batch up to a multiple of this many slots.
        static: `(tokens, segments)`: the batch takes exactly `tokens` slots and `cu_seqlens` `segments + 1` entries,
            whatever is in it, for compilers and CUDA graphs.
        rule: Who may attend to whom; None is causal.
        prefix_lengths: int[S], tokens of the sample that see each other; for the prefix-lm rule.
        blocks: int[N], block number of each token; for the block-causal rule.
        position_ids: int[A, N], own positions (M-RoPE); axis 0 must be the text position, which is checked.
        position_start: Position of a segment's first token (2 for RoBERTa and its kin).
        positions: `"restart"` begins every segment at `position_start`; `"continue"` begins a later piece of a split
            sample where the piece before it ended.
        loss_weights: float[N], or `"per-sample"`: each target weighs 1 / (targets of its sample in this batch), so
            that the weights of a batch sum to its samples (LongAlign, arXiv 2401.18058, up to a constant).
        pad_id: What padding slots hold in `input_ids`. Masks and labels never look at it.
        dtype: `np.int64` (what every model takes) or `np.int32` (half the bytes) of ids, labels and positions.
        media: Carried along untouched.
        copy: False lets `input_ids` be `tokens` itself where type and layout allow, for callers that give it away.

    Returns:
        A batch whose arrays are new and writable; they share no memory with the arguments, but see `copy`.

    Raises:
        PadlessError: When arrays disagree, or a row does not fit.

    Example:
        >>> batch = batch_from_segments(np.arange(10, 15), None, np.array([3, 2]), np.array([0, 1, 2]), capacity=4)
        >>> batch.rectangle(batch.input_ids)
        array([[10, 11, 12,  0],
               [13, 14,  0,  0]])
    """
    rule = Rule() if rule is None else rule
    lengths = np.asarray(lengths, dtype=np.int64)
    if row_offsets is None:
        row_offsets = np.array([0, len(lengths)])
    row_offsets = np.asarray(row_offsets, dtype=np.int64)
    _check_arguments(tokens, targets, labels, lengths, row_offsets, static, starts, sample_ids)
    layout = lay_out(
        lengths,
        row_offsets,
        capacity=capacity,
        align=align,
        multiple=pad_to_multiple,
        slots=None if static is None else static[0],
    )
    slots = _Slots(layout)
    first = layout.starts[:-1]
    begins = np.zeros_like(lengths) if starts is None else np.asarray(starts, dtype=np.int64)

    label_array, lost = _labels(slots, tokens, targets, labels, lengths, begins, dtype)
    label_array[first] = IGNORED
    return Batch(
        input_ids=tokens
        if not copy and slots.packed and tokens.dtype == dtype
        else slots.spread(tokens, pad_id, dtype),
        labels=label_array,
        position_ids=_positions(
            slots, position_ids, position_start, begins if positions == "continue" else None, dtype
        ),
        cu_seqlens=_offsets(np.concatenate([[0], np.cumsum(lengths)]), static),
        cu_seqlens_padded=_offsets(layout.starts, static),
        row_offsets=row_offsets.astype(np.int32),
        sample_ids=np.full(len(lengths), -1) if sample_ids is None else np.array(sample_ids, dtype=np.int64),
        rule=rule,
        ranks=ranks_of(rule, layout, prefix_lengths=prefix_lengths, begins=begins, blocks=blocks, spread=slots.spread),
        loss_weights=_weights(slots, loss_weights, label_array, sample_ids),
        num_targets=int(np.count_nonzero(label_array != IGNORED)),
        max_seqlen=-1 if static is None else (capacity or static[0]),
        align=align,
        static_segments=None if static is None else static[1],
        targets_lost=lost,
        media=media,
    )


class _Slots:
    """Spreads packed arrays [N] over the slots [T] of a layout; the index is made once, and only with padding."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.packed = layout.dense and layout.slots == int(layout.starts[-1])
        self.cuts, self.ids = cover(layout.starts[:-1], layout.lengths, layout.slots)
        self.widths = np.diff(self.cuts)
        self._index: np.ndarray | None = None

    @property
    def index(self) -> np.ndarray | slice:
        if self.layout.dense:
            return slice(0, int(self.layout.starts[-1]))
        if self._index is None:
            lengths = self.layout.lengths
            shift = self.layout.starts[:-1] - (np.cumsum(lengths) - lengths)
            self._index = np.arange(int(lengths.sum()))
            self._index += np.repeat(shift, lengths)
        return self._index

    def spread(self, packed: np.ndarray, fill: float, dtype: Any) -> np.ndarray:
        if self.packed:
            return np.array(packed, dtype=dtype)
        out = np.full(self.layout.slots, fill, dtype=dtype)
        out[self.index] = packed
        return out


def _check_arguments(tokens, targets, labels, lengths, row_offsets, static, starts, sample_ids) -> None:
    if len(lengths) == 0:
        raise PadlessError("there are no segments to put in a batch; give at least one sample")
    if (lengths <= 0).any():
        raise PadlessError(f"segment {int(np.argmax(lengths <= 0))} holds no tokens; drop empty samples and count them")
    total = int(lengths.sum())
    for name, array in {"tokens": tokens, "targets": targets, "labels": labels}.items():
        if array is not None and len(array) != total:
            raise PadlessError(f"{name} holds {len(array):,} entries and the lengths add up to {total:,}")
    if targets is not None and labels is not None:
        raise PadlessError("give targets or labels, not both: each says which tokens enter the loss")
    for name, array in {"starts": starts, "sample_ids": sample_ids}.items():
        if array is not None and len(array) != len(lengths):
            raise PadlessError(f"{name} holds {len(array):,} entries for {len(lengths):,} segments")
    if row_offsets[0] != 0 or row_offsets[-1] != len(lengths) or (np.diff(row_offsets) <= 0).any():
        raise PadlessError(f"row_offsets must grow from 0 to {len(lengths)} (segments), no row empty")
    if static is not None and len(lengths) > static[1]:
        row = int(np.searchsorted(row_offsets, static[1], side="right")) - 1
        raise PadlessError(
            f"static=(..., {static[1]:,} segments) is too small: the batch holds {len(lengths):,} segments and row "
            f"{row} is the first that does not fit; plan with max_segments, give fewer rows, or allow more segments"
        )


def _labels(slots: _Slots, tokens, targets, labels, lengths, begins, dtype) -> tuple[np.ndarray, int]:
    """Labels over slots, and how many targets are lost as first tokens of later pieces."""
    later = np.flatnonzero(begins > 0)
    head = (np.cumsum(lengths) - lengths)[later]
    if labels is not None:
        lost = int((labels[head] != IGNORED).sum())
        return slots.spread(labels, IGNORED, dtype), lost
    if targets is None:
        return slots.spread(tokens, IGNORED, dtype), len(later)
    lost = int(np.count_nonzero(targets[head]))
    values = np.where(targets, tokens, np.asarray(IGNORED, dtype))
    return values if slots.packed and values.dtype == dtype else slots.spread(values, IGNORED, dtype), lost


def _positions(slots: _Slots, own, start: int, begins, dtype) -> np.ndarray:
    """Positions count up from `start` in every piece of the cover, so padding counts as its own short segments."""
    offsets = slots.cuts[:-1] - start
    if begins is not None:
        offsets[slots.ids > 0] -= begins
    text = _ramps(slots.cuts[:-1] - offsets, slots.widths, dtype)
    if own is None:
        return text
    if np.ndim(own) != 2:
        raise PadlessError(f"position_ids must be [axes, tokens], axis 0 the text position; got {np.shape(own)}")
    axes = np.stack([slots.spread(axis, 0, dtype) for axis in own])
    real = slots.index
    if (axes[0][real] != text[real]).any():
        raise PadlessError(
            f"axis 0 of position_ids is not the text position (from {start} up by 1 in each segment); kernels read "
            f"boundaries from it, and a temporal axis there would cut samples apart at images"
        )
    axes[0] = text
    return axes


def _ramps(firsts: np.ndarray, widths: np.ndarray, dtype: Any) -> np.ndarray:
    """`[f0, f0 + 1, .., f0 + w0 - 1, f1, ..]`: long pieces as copies of one ramp, short ones by arithmetic."""
    ends = firsts + widths
    slots = int(widths.sum())
    if slots < RAMP_SLOTS * len(widths):
        text = np.arange(slots, dtype=dtype)
        text += np.repeat((ends - np.cumsum(widths)).astype(dtype), widths)
        return text
    ramp = np.arange(int(ends.max()), dtype=dtype)
    return np.concatenate([ramp[a:b] for a, b in zip(firsts.tolist(), ends.tolist(), strict=True)])


def _offsets(offsets: np.ndarray, static: tuple[int, int] | None) -> np.ndarray:
    if static is None:
        return offsets.astype(np.int32)
    out = np.full(static[1] + 1, offsets[-1], dtype=np.int32)
    out[: len(offsets)] = offsets
    return out


def _weights(slots: _Slots, weights, labels: np.ndarray, sample_ids) -> np.ndarray | None:
    if weights is None:
        return None
    wanted = labels != IGNORED
    if not isinstance(weights, str):
        return np.where(wanted, slots.spread(weights, 0, np.float32), np.float32(0))
    if weights != "per-sample":
        raise PadlessError(f"loss_weights={weights!r} is unknown; give 'per-sample', one weight per token, or None")
    owner = np.repeat(slots.ids, slots.widths)
    counts = np.bincount(owner, weights=wanted, minlength=len(slots.layout.lengths) + 1)
    if sample_ids is not None:
        # Pieces of one sample share its weight; a segment that nobody named (-1) is a sample of its own.
        named = np.where(np.asarray(sample_ids) < 0, -1 - np.arange(len(sample_ids)), sample_ids)
        _, group = np.unique(named, return_inverse=True)
        counts[1:] = np.bincount(group, weights=counts[1:])[group]
    with np.errstate(divide="ignore"):
        per_target = (1 / counts).astype(np.float32)
    per_target[0] = 0
    return np.where(wanted, per_target[owner], np.float32(0))
