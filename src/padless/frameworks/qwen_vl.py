"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and their kin in Transformers: packed rows of images, videos and text."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from padless.errors import PadlessError, require
from padless.rows import IGNORED, Batch, MediaLayout, collate_media

require("transformers", extra="hf", feature="padless.frameworks.qwen_vl")

import torch  # noqa: E402

from padless.frameworks.transformers.media_layouts import media_layout  # noqa: E402
from padless.frameworks.transformers_batch import transformers_batch  # noqa: E402

_PER_SAMPLE = ("input_ids", "labels")
_MEDIA = ("image_grid_thw", "video_grid_thw", "pixel_values", "pixel_values_videos", "second_per_grid_ts")


def layout_of(model: Any) -> MediaLayout:
    """How a model, or its config, writes images and videos.

    Raises:
        PadlessError: When it does not rotate by time, height and width, as the Qwen-VL family does.

    Example:
        >>> from padless.frameworks.tiny_models import tiny_model
        >>> layout_of(tiny_model("qwen3_vl")).frames_apart
        True
    """
    layout = media_layout(model)
    if layout is None:
        raise PadlessError(
            f"{type(model).__name__} has no image_token_id, vision_config and M-RoPE in its config: its images are not "
            "written as those of the Qwen-VL family"
        )
    return layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class MediaCollator:
    """Makes one flat row of samples with images, videos and text, as keyword arguments of a prepared model.

    A mini-batch holds what a Qwen-VL processor gives for one sample each (`input_ids [n]` or `[1, n]`, `pixel_values`,
    `image_grid_thw`, ..., as arrays or tensors) and `labels`, or lists of such samples (the rows of a plan), or is a
    `Batch` from `collate_media`. Positions are made here, for each sample alone; those of the processor are not used.

    Attributes:
        layout: `layout_of(model)`.
        pad_to_multiple: Round the row up to a multiple of this many tokens; the padding is a segment of its own.

    Example:
        >>> from padless.frameworks.tiny_models import tiny_model
        >>> collator = MediaCollator(layout=layout_of(tiny_model("qwen2_5_vl")))
        >>> seen = {"input_ids": [5, 90, 6], "image_grid_thw": [[1, 2, 2]], "pixel_values": torch.zeros(4, 96)}
        >>> row = collator([seen, {"input_ids": [7, 8]}])
        >>> row["labels"].tolist(), row["position_ids"][1:, 0].tolist(), row["image_cu_seqlens"].tolist()
        ([[-100, -100, 6, -100, 8]], [[0, 1, 2, 0, 1], [0, 1, 2, 0, 1], [0, 1, 2, 0, 1]], [0, 4])
    """

    layout: MediaLayout
    pad_to_multiple: int = 1

    def __call__(self, features: Sequence[Any] | Batch) -> dict[str, Any]:
        """A mini-batch as keyword arguments.

        Raises:
            PadlessError: When placeholders, grids and pixels do not match, or a sample brings its own padding.
        """
        return transformers_batch(features if isinstance(features, Batch) else self.batch(features))

    def batch(self, features: Sequence[Any]) -> Batch:
        """The same mini-batch as a `Batch`, for `packed_loss` and for looking at it."""
        flat = [each for item in features for each in (item if isinstance(item, list) else [item])]
        samples = [_clean(each) for each in flat]
        return collate_media(samples, self.layout, pad_to_multiple=self.pad_to_multiple)


def token_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """`compute_loss_func` of HF Trainer: the sum over targets, divided by those of the whole global batch.

    Qwen-VL models in Transformers take no count of targets, so that Trainer averages the means of unequal
    micro-batches; and their loss casts logits to float32. This does neither.

    Args:
        outputs: Of the model.
        labels: `[1, T]`, unshifted.
        num_items_in_batch: Targets of all accumulation steps; of this call alone unless given.
    """
    logits = outputs["logits"]
    wide = logits if logits.dtype == torch.float64 else logits.float()
    shifted = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    total = torch.nn.functional.cross_entropy(
        wide.flatten(0, 1), shifted.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    count = (shifted != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
    return total / torch.as_tensor(count, device=total.device).clamp(min=1)


def _clean(feature: Any) -> Any:
    """One sample under padless's names; a processor's row axis and its all-ones mask go."""
    if not isinstance(feature, Mapping):
        return feature
    mask = feature.get("attention_mask")
    if mask is not None and not bool(torch.as_tensor(mask).all()):
        raise PadlessError(
            "a sample has zeros in its attention_mask: it was padded before packing, and its padding would be trained "
            "on; process one sample at a time, without padding"
        )
    sample = {name: _one_row(name, feature[name]) for name in _PER_SAMPLE if feature.get(name) is not None}
    return sample | {name: feature[name] for name in _MEDIA if feature.get(name) is not None}


def _one_row(name: str, values: Any) -> Any:
    shape = getattr(values, "shape", None) or torch.as_tensor(values).shape
    if len(shape) == 2 and shape[0] == 1:
        return values[0]
    if len(shape) != 1:
        raise PadlessError(
            f"a sample's {name} has shape {tuple(shape)}: expected [n] or [1, n], one sample at a time; a padded batch "
            "cannot be packed"
        )
    return values
