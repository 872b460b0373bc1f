"""Samples with images and videos to a batch: media stay beside their tokens, and positions are each sample's own."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from padless.errors import PadlessError
from padless.rows.batch import Batch
from padless.rows.collate import collate
from padless.rows.media import KINDS, Kind, MediaLayout, as_grids, find_extents, mrope_positions, tower_layout
from padless.rows.samples import is_sample
from padless.rows.tensors import host, is_tensor

PIXELS: dict[Kind, str] = {"image": "pixel_values", "video": "pixel_values_videos"}
GRIDS: dict[Kind, str] = {"image": "image_grid_thw", "video": "video_grid_thw"}


def collate_media(samples: Sequence[Any], layout: MediaLayout, **options: Any) -> Batch:
    """`collate` for samples with images and videos.

    Args:
        samples: A list of samples, or of rows of samples, as for `collate`. A sample is a mapping that may also hold
            `image_grid_thw int[N, 3]` and `video_grid_thw int[V, 3]` (patches of each medium, in the order of their
            tokens), `pixel_values [patches, D]` and `pixel_values_videos [patches, D]` (arrays or tensors), and
            `second_per_grid_ts float[V]`. These are the names that Transformers' processors give. Without labels or
            a mask, every token but the first and but placeholders is a target.
        layout: The model's.
        **options: As for `collate`.

    Returns:
        A batch with four axes of positions and, where there are any media, `media` with these entries, for `image`
        and the same for `video`:

        - `pixel_values` (`pixel_values_videos`): `[P, D]`, all media one behind the other;
        - `image_grid_thw`: int64[N, 3];
        - `image_segment_ids`: int32[N], which segment (1..S) each medium belongs to;
        - `image_cu_seqlens`: int32[F + 1], the tower's segments, one per frame, in patches;
        - `image_window_index`: int64[M] and `image_cu_window_seqlens`: int32[W + 1], for towers with windows.

    Raises:
        PadlessError: When placeholders, grids and pixels do not match, or a piece of a split sample cuts a medium.

    Example:
        >>> layout = MediaLayout(image_token=9)
        >>> seen = {"input_ids": [1, 9, 9, 2], "image_grid_thw": [[1, 2, 4]], "pixel_values": np.zeros((8, 3))}
        >>> batch = collate_media([seen, {"input_ids": [4, 5]}], layout)
        >>> batch.position_ids[1:].tolist()
        [[0, 1, 1, 3, 0, 1], [0, 1, 1, 3, 0, 1], [0, 1, 2, 3, 0, 1]]
        >>> {name: value.tolist() for name, value in batch.media.items() if name != "pixel_values"}
        {'image_grid_thw': [[1, 2, 4]], 'image_segment_ids': [1], 'image_cu_seqlens': [0, 8]}
    """
    rows = [samples] if not samples or is_sample(samples[0]) else samples
    placed = [
        [_placed(sample, layout, f"row {r}, sample {i}") for i, sample in enumerate(row)] for r, row in enumerate(rows)
    ]
    flat = [sample for row in placed for sample in row]
    media: dict[str, Any] = {}
    for kind in KINDS:
        media |= _joined(flat, kind, layout)
    return collate(placed, media=media or None, **options)


def _placed(sample: Any, layout: MediaLayout, where: str) -> dict[str, Any]:
    """The sample with positions of its own; its media are checked against its tokens."""
    if not isinstance(sample, Mapping):
        sample = {"input_ids": sample}
    ids = np.asarray(host(sample["input_ids"]))
    grids = {name: host(sample.get(name)) for name in GRIDS.values()}
    try:
        extents = find_extents(ids, layout, **grids)
    except PadlessError as error:
        raise PadlessError(f"{where}: {error}") from None
    for kind in KINDS:
        _check_pixels(sample, kind, where)
    seconds, videos = host(sample.get("second_per_grid_ts")), as_grids(grids[GRIDS["video"]])
    if seconds is not None and len(seconds) != len(videos):
        raise PadlessError(f"{where}: second_per_grid_ts has {len(seconds)} values for {len(videos)} videos")
    positions = mrope_positions(len(ids), extents, layout, second_per_grid_ts=seconds)
    said = any(sample.get(name) is not None for name in ("labels", "targets", "loss_mask"))
    own = {} if said else {"targets": _text_targets(ids, layout, sample.get("start") or 0)}
    return {**sample, **own, "position_ids": positions}


def _text_targets(ids: np.ndarray, layout: MediaLayout, start: int) -> np.ndarray:
    """Every token but the first of the sample, and but placeholders: which medium follows is no token to predict."""
    targets = ids != layout.image_token
    if layout.video_token is not None:
        targets &= ids != layout.video_token
    targets[:1] &= start > 0
    return targets


def _check_pixels(sample: Mapping[str, Any], kind: Kind, where: str) -> None:
    pixels, grids = sample.get(PIXELS[kind]), sample.get(GRIDS[kind])
    if pixels is None:
        return
    patches = 0 if grids is None else int(np.prod(np.asarray(host(grids)), axis=-1).sum())
    if not hasattr(pixels, "shape"):
        raise PadlessError(
            f"{where}: {PIXELS[kind]} is a {type(pixels).__name__}; expected an array or a tensor [patches, values per "
            "patch] (of datasets: with_format)"
        )
    if len(pixels.shape) != 2 or pixels.shape[0] != patches:
        raise PadlessError(
            f"{where}: {PIXELS[kind]} has shape {tuple(pixels.shape)} and {GRIDS[kind]} makes {patches} patches; "
            "expected [patches, values per patch]"
        )


def _joined(samples: Sequence[Mapping[str, Any]], kind: Kind, layout: MediaLayout) -> dict[str, Any]:
    """All media of a kind, one behind the other, with the tower's segments."""
    owners = [(i, np.asarray(host(s[GRIDS[kind]]), dtype=np.int64)) for i, s in enumerate(samples, 1) if _has(s, kind)]
    if not owners:
        return {}
    pixels = [sample.get(PIXELS[kind]) for sample in samples if _has(sample, kind)]
    missing = sum(values is None for values in pixels)
    if 0 < missing < len(pixels):
        raise PadlessError(f"{missing} of {len(pixels)} samples with a {kind} have no {PIXELS[kind]}: all or none")
    grids = np.concatenate([grid for _, grid in owners])
    found: dict[str, Any] = {} if missing else {PIXELS[kind]: _concatenate(pixels)}
    found[GRIDS[kind]] = grids
    found[f"{kind}_segment_ids"] = np.repeat([i for i, _ in owners], [len(grid) for _, grid in owners]).astype(np.int32)
    return found | {f"{kind}_{name}": value for name, value in tower_layout(grids, layout).items()}


def _has(sample: Mapping[str, Any], kind: Kind) -> bool:
    grids = sample.get(GRIDS[kind])
    return grids is not None and len(grids) > 0


def _concatenate(pixels: list[Any]) -> Any:
    widths = {values.shape[1] for values in pixels}
    if len(widths) > 1:
        raise PadlessError(f"patches of one batch have {sorted(widths)} values: one processor's sizes for all samples")
    if any(map(is_tensor, pixels)):
        import torch

        return torch.cat([torch.as_tensor(values) for values in pixels])
    return np.concatenate(pixels)
