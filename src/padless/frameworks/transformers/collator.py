"""Samples or packed rows to keyword arguments, for HF Trainer, TRL and plain data loaders."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from padless.errors import PadlessError
from padless.frameworks.transformers_batch import transformers_batch
from padless.rows import Batch, collate

_USED = {"input_ids", "labels", "completion_mask", "assistant_masks"}
_MADE_ANEW = {"attention_mask", "position_ids", "token_type_ids", "seq_lengths", "length"}  # nothing new is in these
_TARGET_MASKS = ("completion_mask", "assistant_masks")  # TRL's columns: 1 where the token is trained on


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedCollator:
    """Makes one flat row of everything in a mini-batch, with the boundaries said explicitly.

    A mini-batch may hold samples (`input_ids`, and optionally `labels`, `completion_mask` or `assistant_masks`), lists
    of samples, packed rows with a `seq_lengths` column (`padless export --to trl`, `trl.pack_dataset`), or be a `Batch`
    as `PackedDataset` makes it. Several rows become one row of several segments: there is never batch padding.

    Attributes:
        pad_to_multiple: Round the row up to a multiple of this many tokens; the padding is a segment of its own.
        static: `(tokens, segments)`: always these sizes, for compilers.

    Example:
        >>> rows = [{"input_ids": [1, 2, 3, 4, 5], "seq_lengths": [3, 2]}, {"input_ids": [6, 7], "seq_lengths": [2]}]
        >>> batch = PackedCollator()(rows)
        >>> batch["position_ids"].tolist(), batch["labels"].tolist()
        ([[0, 1, 2, 0, 1, 0, 1]], [[-100, 2, 3, -100, 5, -100, 7]])
        >>> batch["cu_seq_lens_q"].tolist()
        [0, 3, 5, 7]
    """

    pad_to_multiple: int = 1
    static: tuple[int, int] | None = None

    def __call__(self, features: Sequence[Any] | Batch) -> dict[str, Any]:
        """A mini-batch as keyword arguments of a prepared model.

        Raises:
            PadlessError: When a row's `seq_lengths` do not add up, or a sample brings its own padding, or numbers that
                would be lost (images, weights): columns of text may stay, they are where the tokens came from.
        """
        if isinstance(features, Batch):
            return transformers_batch(features)
        samples = [sample for each in features for sample in _samples(each)]
        return transformers_batch(collate(samples, pad_to_multiple=self.pad_to_multiple, static=self.static))


def _samples(feature: Any) -> Iterator[Any]:
    """The samples in one element of a mini-batch."""
    if isinstance(feature, Mapping):
        sample = _clean(feature)
        lengths = feature.get("seq_lengths")
        yield from [sample] if lengths is None else _cut(sample, lengths)
    elif isinstance(feature, list) and feature and isinstance(feature[0], Mapping):
        for each in feature:
            yield from _samples(each)
    else:
        yield feature


def _clean(feature: Mapping[str, Any]) -> dict[str, Any]:
    """`input_ids` and what is trained on, under padless's names; positions and boundaries are made anew."""
    mask = feature.get("attention_mask")
    if mask is not None and not np.asarray(mask).all():
        raise PadlessError(
            "a sample has zeros in its attention_mask: it was padded before packing, and its padding would be trained "
            "on; tokenize without padding"
        )
    lost = sorted(name for name in feature.keys() - _USED - _MADE_ANEW if _holds_numbers(feature[name]))
    if lost:
        raise PadlessError(
            f"samples have columns that a packed row has no place for: {', '.join(lost)}; what is in them would be "
            "lost. Remove them (dataset.remove_columns), or make batches that carry them: padless.collate for "
            "loss_weights, padless.frameworks.qwen_vl for images"
        )
    sample = {name: np.asarray(feature[name]) for name in ("input_ids", "labels") if feature.get(name) is not None}
    masks = [np.asarray(feature[name]).astype(bool) for name in _TARGET_MASKS if feature.get(name) is not None]
    if masks and "labels" in sample:
        sample["labels"] = np.where(np.logical_and.reduce(masks), sample["labels"], -100)
    elif masks:
        sample["loss_mask"] = np.logical_and.reduce(masks)
    return sample


def _holds_numbers(value: Any) -> bool:
    """Whether a column holds arrays of numbers; single numbers are ids and counts of the dataset."""
    if value is None or isinstance(value, str | bytes | Mapping):
        return False
    if isinstance(value, list | tuple):
        return len(value) > 0 and (isinstance(value[0], int | float) or _holds_numbers(value[0]))
    return getattr(value, "ndim", 0) > 0


def _cut(row: dict[str, Any], lengths: Sequence[int]) -> Iterator[dict[str, Any]]:
    """A packed row as its samples; the first label of each goes, since nothing before it may predict it."""
    ends = np.cumsum(np.asarray(lengths))
    total = len(row["input_ids"])
    if not len(ends) or ends[-1] != total:
        raise PadlessError(
            f"a row has {total} tokens but its seq_lengths {list(lengths)[:8]} add up to {int(sum(lengths))}: "
            "segments would start at the wrong tokens; seq_lengths is one length per segment of the row"
        )
    for end, length in zip(ends, lengths, strict=True):
        piece = {name: values[end - length : end] for name, values in row.items()}
        for name, nothing in (("labels", -100), ("loss_mask", False)):
            if name in piece and length:
                piece[name] = piece[name].copy()
                piece[name][0] = nothing
        yield piece
