"""Samples to a batch."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from padless.errors import PadlessError
from padless.rows.assemble import batch_from_segments
from padless.rows.batch import IGNORED, Batch
from padless.rows.rule import Rule
from padless.rows.samples import Piece, as_piece, is_sample


def collate(
    samples: Sequence[Any],
    *,
    capacity: int | None = None,
    align: int = 1,
    pad_to_multiple: int = 1,
    static: tuple[int, int] | None = None,
    rule: Rule | None = None,
    position_start: int = 0,
    positions: Literal["restart", "continue"] = "restart",
    loss_weights: Literal["per-sample"] | None = None,
    pad_id: int = 0,
    dtype: Any = np.int64,
    media: Mapping[str, Any] | None = None,
) -> Batch:
    """Put samples into rows, and rows into one flat batch, with every boundary carried explicitly.

    Args:
        samples: A list of samples, which becomes one row, or a list of rows, each a list of samples. A sample is a
            `Sample`, a mapping (`input_ids` and optionally `labels` | `targets` | `loss_mask`, `sample_id`, `start`,
            `prefix_length`, `blocks`, `position_ids`, `loss_weights`), or bare token ids. Labels are unshifted.
        capacity: Pad every row to this many slots. None: no tails, rows end where their last segment ends.
        align: Round every segment up to a multiple of this many slots (context parallel `2 * cp`, FP8).
        pad_to_multiple: Round the whole batch up to a multiple of this many slots.
        static: `(tokens, segments)`: exactly `tokens` slots and `segments + 1` entries of `cu_seqlens`, for compilers
            and CUDA graphs.
        rule: Who may attend to whom; None is causal. Prefix-LM needs `prefix_length`, block-causal `blocks` in samples.
        position_start: Position of a segment's first token (2 for RoBERTa and its kin).
        positions: Whether a later piece of a split sample restarts, or continues where the piece before it ended.
        loss_weights: `"per-sample"` weighs every sample equally; see `batch_from_segments`.
        pad_id: What padding slots hold. Masks and labels never look at it.
        dtype: `np.int64`, or `np.int32` for half the bytes.
        media: Carried along untouched.

    Returns:
        A `Batch` of numpy arrays; `.torch()` makes tensors of them without a copy.

    Raises:
        PadlessError: When samples are malformed or do not fit.

    Example:
        >>> row = [{"input_ids": [1, 2, 3], "labels": [-100, -100, 3]}, {"input_ids": [4, 5]}]
        >>> batch = collate(row, capacity=8)
        >>> batch.labels
        array([-100, -100,    3, -100,    5, -100, -100, -100])
        >>> batch.position_ids
        array([0, 1, 2, 0, 1, 0, 1, 2])
        >>> print(collate([row, row], align=2).summary())
        rows       2, with 4 segments of 2 to 3 tokens
        slots      12: 10 real, 2 alignment, 0 tail (16.7% padding)
        targets    4
        positions  1 axis
        rule       causal
    """
    rows = _as_rows(samples)
    pieces = [as_piece(s, f"row {r}, sample {i}") for r, row in enumerate(rows) for i, s in enumerate(row)]
    targets, labels = _join_targets(pieces)
    weights = _join_all(pieces, "loss_weights")
    if weights is not None and loss_weights is not None:
        raise PadlessError(f"samples bring their own loss_weights and loss_weights={loss_weights!r} was asked for")
    prefixes = _all_or_none(pieces, "prefix_length")
    return batch_from_segments(
        np.concatenate([piece.input_ids for piece in pieces]) if pieces else np.empty(0, np.int64),
        targets,
        np.array([len(piece.input_ids) for piece in pieces], dtype=np.int64),
        np.cumsum([0, *map(len, rows)]),
        sample_ids=np.array([piece.sample_id for piece in pieces]),
        starts=np.array([piece.start for piece in pieces]),
        labels=labels,
        capacity=capacity,
        align=align,
        pad_to_multiple=pad_to_multiple,
        static=static,
        rule=rule,
        prefix_lengths=None if prefixes is None else np.array(prefixes),
        blocks=_join_all(pieces, "blocks"),
        position_ids=_join_all(pieces, "position_ids"),
        position_start=position_start,
        positions=positions,
        loss_weights=loss_weights if weights is None else weights,
        pad_id=pad_id,
        dtype=dtype,
        media=media,
    )


def _as_rows(samples: Sequence[Any]) -> list[list[Any]]:
    samples = list(samples)
    if not samples or is_sample(samples[0]):
        return [samples]
    return [list(row) for row in samples]


def _all_or_none(pieces: list[Piece], name: str) -> list[Any] | None:
    values = [getattr(piece, name) for piece in pieces]
    given = sum(value is not None for value in values)
    if 0 < given < len(values):
        raise PadlessError(f"{given} of {len(values)} samples have {name}; either all of them or none")
    return values if given else None


def _join_all(pieces: list[Piece], name: str) -> np.ndarray | None:
    values = _all_or_none(pieces, name)
    return None if values is None else np.concatenate(values, axis=-1)


def _join_targets(pieces: list[Piece]) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Masks where all samples have masks or nothing, labels where any sample has labels."""
    if all(piece.targets is None and piece.labels is None for piece in pieces):
        return None, None
    if any(piece.labels is not None for piece in pieces):
        return None, np.concatenate([_labels_of(piece) for piece in pieces])
    masks = [piece.targets if piece.targets is not None else _all_but_first(piece) for piece in pieces]
    return np.concatenate(masks), None


def _all_but_first(piece: Piece) -> np.ndarray:
    # A later piece's first token is a target of its sample; that it is lost here is counted, so it stays in the mask.
    return np.arange(len(piece.input_ids)) + piece.start > 0


def _labels_of(piece: Piece) -> np.ndarray:
    if piece.labels is not None:
        return piece.labels.astype(np.int64)
    wanted = piece.targets if piece.targets is not None else _all_but_first(piece)
    return np.where(wanted, piece.input_ids.astype(np.int64), IGNORED)
