"""What `collate` takes as a sample, made one shape.

A sample is anything with `input_ids`: a `padless.corpus.Sample`, a mapping in the style of `datasets`, any object with
such attributes, or a plain list or array of token ids. Nothing here imports the corpus.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from padless.errors import PadlessError
from padless.rows.tensors import host

_MASKS = ("targets", "loss_mask")


class Piece(NamedTuple):
    """One segment, ready to be joined with others; absent parts are None."""

    input_ids: np.ndarray
    targets: np.ndarray | None
    labels: np.ndarray | None
    sample_id: int
    start: int
    prefix_length: int | None
    blocks: np.ndarray | None
    position_ids: np.ndarray | None
    loss_weights: np.ndarray | None


def as_piece(sample: Any, where: str) -> Piece:
    """Read a sample.

    Args:
        sample: A mapping or object with `input_ids` and, optionally: one of `labels` (unshifted, -100 for no target),
            `targets` or `loss_mask` (true where the token itself is a target); `sample_id`; `start` (of a piece inside
            its sample); `prefix_length`; `blocks`; `position_ids` `[A, n]`; `loss_weights`. Or bare token ids.
        where: How errors call it, e.g. `"row 0, sample 3"`.

    Raises:
        PadlessError: When parts disagree in length, or labels are already shifted.
    """

    def part(name: str) -> Any:
        return sample.get(name) if isinstance(sample, Mapping) else getattr(sample, name, None)

    def array(name: str) -> np.ndarray | None:
        value = part(name)
        return None if value is None else np.asarray(host(value))

    ids = array("input_ids")
    if ids is None:
        if isinstance(sample, Mapping) or not _is_ids(sample):
            raise PadlessError(f"{where} has no input_ids; give token ids, a mapping with input_ids, or a Sample")
        return Piece(np.asarray(host(sample)), None, None, -1, 0, None, None, None, None)
    masks = [name for name in _MASKS if part(name) is not None]
    labels = array("labels")
    if len(masks) + (labels is not None) > 1:
        raise PadlessError(f"{where} has more than one of labels, targets, loss_mask; each says what is trained on")
    mask = array(masks[0]) if masks else None
    targets = None if mask is None else mask.astype(bool)
    piece = Piece(
        input_ids=ids,
        targets=targets,
        labels=labels,
        sample_id=_number(part("sample_id"), -1),
        start=_number(part("start"), 0),
        prefix_length=part("prefix_length"),
        blocks=array("blocks"),
        position_ids=array("position_ids"),
        loss_weights=array("loss_weights"),
    )
    _check(piece, where)
    return piece


def is_sample(x: Any) -> bool:
    """Whether `x` is one sample, and not a row of samples."""
    return not isinstance(x, Sequence) or _is_ids(x)


def _is_ids(x: Any) -> bool:
    if isinstance(x, Sequence):
        return len(x) == 0 or isinstance(x[0], (int, np.integer))
    return hasattr(x, "shape")


def _number(value: Any, default: int) -> int:
    return default if value is None else int(value)


def _check(piece: Piece, where: str) -> None:
    n = len(piece.input_ids)
    if piece.input_ids.ndim != 1 or piece.input_ids.dtype.kind not in "iu":
        raise PadlessError(
            f"{where}: input_ids must be one row of whole numbers, got {piece.input_ids.dtype} {piece.input_ids.shape}"
        )
    for name in ("targets", "labels", "blocks", "position_ids", "loss_weights"):
        value = getattr(piece, name)
        if value is not None and value.shape[-1:] != (n,):
            raise PadlessError(f"{where}: {name} has shape {value.shape} for {n} input_ids")
    if piece.labels is not None and looks_shifted(piece.input_ids, piece.labels):
        raise PadlessError(
            f"{where}: labels are shifted already (labels[i] is input_ids[i + 1]); padless takes unshifted labels, "
            f"labels[i] is input_ids[i] or -100, or the model would be trained two tokens ahead"
        )


def looks_shifted(ids: np.ndarray, labels: np.ndarray) -> bool:
    """Whether every target is the token behind it, and some target is not the token itself."""
    if len(ids) < 3:
        return False
    wanted = labels[:-1] != -100
    wanted_labels = labels[:-1][wanted]
    behind = bool((wanted_labels == ids[1:][wanted]).all())
    itself = bool((wanted_labels == ids[:-1][wanted]).all())
    return bool(wanted.any()) and behind and not itself
