"""The dialect of Hugging Face Transformers: keyword arguments of `model(**batch)` for packed rows.

Traps on that side (transformers 5.24):

- An `attention_mask`, even of ones, wins over boundaries; so does a cache object, which models make unless
  `use_cache=False`. There is no `attention_mask` here, and the flag is the caller's (or `prepare`'s).
- Flash attention reads boundaries from `cu_seq_lens_*`; the mask path reads them from `position_ids` wherever the
  step is not 1; short convolutions read them from `seq_idx`. All three say the same thing here, padding included.
- Qwen-VL isolates only with four axes of positions, the text position first; with three it does not.
- A vision tower computes its segments from the grids, waiting for the device; where they are given, it does not.
"""

from typing import Any

import numpy as np

from padless.errors import PadlessError, require
from padless.frameworks.refusals import refuse_ranks
from padless.rows import Batch
from padless.rows.media_collate import GRIDS, PIXELS
from padless.rows.tensors import host, to_torch

MROPE_AXES = 3
OWN = ("image_segment_ids", "video_segment_ids")  # in `Batch.media` for padless; no model has a name for them


def transformers_batch(batch: Batch) -> dict[str, Any]:
    """A batch as keyword arguments of a Transformers model, in one row of T slots.

    Args:
        batch: Arrays or tensors; numpy arrays are shared, not copied.

    Returns:
        `input_ids, labels int64[1, T]` (labels unshifted), `position_ids [1, T]` or `[A, 1, T]`, `cu_seq_lens_q` and
        `cu_seq_lens_k int32[P + 1]` (one tensor; they cover all T slots, padding as short segments),
        `max_length_q, max_length_k int`, and `seq_idx int32[1, T]` from 0. Of a batch with images or videos also
        `pixel_values`, `image_grid_thw`, `image_cu_seqlens`, and so on, as `collate_media` names them.

    Raises:
        MissingExtraError: Without torch.
        PadlessError: When the rule is none that a model's configuration can say, or positions have M-RoPE axes without
            the text position in front; or images or videos come without pixels.

    Example:
        >>> from padless import collate
        >>> kwargs = transformers_batch(collate([[5, 6, 7], [8, 9]]))
        >>> kwargs["labels"].tolist(), kwargs["cu_seq_lens_q"].tolist(), kwargs["max_length_q"]
        ([[-100, 6, 7, -100, 9]], [0, 3, 5], 3)
    """
    require("torch", extra="torch", feature="the Transformers dialect")
    refuse_ranks(batch, "Transformers")
    _refuse_media_without_pixels(batch.media or {})
    cu_seqlens = host(batch.covering_cu_seqlens()[0])
    widths = np.diff(cu_seqlens)
    longest = max(int(widths.max()), batch.max_seqlen)
    boundaries = to_torch(cu_seqlens, getattr(batch.input_ids, "device", None))
    seq_idx = np.repeat(np.arange(len(widths), dtype=np.int32), widths)
    return {
        "input_ids": _long(batch.input_ids)[None],
        "labels": _long(batch.labels)[None],
        "position_ids": _positions(batch),
        "cu_seq_lens_q": boundaries,
        "cu_seq_lens_k": boundaries,
        "max_length_q": longest,
        "max_length_k": longest,
        "seq_idx": to_torch(seq_idx, boundaries.device)[None],
        **{name: to_torch(value) for name, value in (batch.media or {}).items() if name not in OWN},
    }


def _refuse_media_without_pixels(media: Any) -> None:
    for kind, pixels in PIXELS.items():
        if GRIDS[kind] in media and pixels not in media:
            raise PadlessError(
                f"the batch has {len(media[GRIDS[kind]])} {kind}s and no {pixels}: a model reads their placeholders as "
                "text and trains on it; give every sample its pixels"
            )


def _positions(batch: Batch) -> Any:
    """`[1, T]`, or `[A, 1, T]` with the text position first."""
    positions = _long(batch.position_ids)
    if positions.ndim == 1:
        return positions[None]
    if positions.shape[0] == MROPE_AXES:
        raise PadlessError(
            "position_ids have 3 axes: Transformers would take them for M-RoPE without the text position and let "
            "segments see each other; give 4 axes, the text position first"
        )
    return positions[:, None]


def _long(values: Any) -> Any:
    """As an int64 tensor, without a copy where it is one already."""
    return to_torch(values).long()
