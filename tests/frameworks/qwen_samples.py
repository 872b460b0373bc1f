"""Samples with images and videos for tiny Qwen-VL models, and what the shipped model makes of each alone."""

from typing import Any

import numpy as np
import torch

from padless.frameworks.tiny_models import IMAGE_TOKENS, tiny_model
from padless.rows import IGNORED, MediaLayout
from padless.rows.media import find_extents, mrope_positions

IMAGE, VIDEO, START, END = (
    IMAGE_TOKENS[f"{name}_token_id"] for name in ("image", "video", "vision_start", "vision_end")
)
PIXELS = 3 * 2 * 4 * 4
NAMES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")


def image(height: int, width: int) -> list[int]:
    """The placeholders of an image of so many patches."""
    return [IMAGE] * (height * width // 4)


def video(frames: int, height: int, width: int, *, apart: bool) -> list[int]:
    """The placeholders of a video; with frames apart, text stands between them."""
    frame = [VIDEO] * (height * width // 4)
    if not apart:
        return [START, *frame * frames, END]
    return [token for number in range(frames) for token in (40 + number, START, *frame, END)]


def sample(
    ids: list[int],
    *,
    images: Any = (),
    videos: Any = (),
    labels: list[int] | None = None,
    seconds: list[float] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """A sample as a processor would give it, with random pixels."""
    rng = np.random.default_rng(seed)
    made: dict[str, Any] = {"input_ids": ids, "labels": default_labels(ids) if labels is None else labels}
    for kind, grids in (("", images), ("_videos", videos)):
        if grids:
            patches = int(np.prod(grids, axis=1).sum())
            made[f"pixel_values{kind}"] = torch.from_numpy(rng.standard_normal((patches, PIXELS)))
            made["video_grid_thw" if kind else "image_grid_thw"] = torch.tensor(grids)
    if seconds is not None:
        made["second_per_grid_ts"] = seconds
    return made


def default_labels(ids: list[int]) -> list[int]:
    """Every token but the first, placeholders and the marks around them is a target."""
    return [IGNORED, *(IGNORED if token >= 90 else token for token in ids[1:])]


def all_kinds(*, apart: bool) -> list[dict[str, Any]]:
    """Text around an image; two images without anything between them, first in the sample; text alone; a video; an
    image and a video; a sample without targets that ends with an image; one that starts with one."""
    texts = [
        ([5, 6, START, *image(4, 4), END, 7, 8, 9], {"images": [[1, 4, 4]]}),
        ([*image(4, 4), *image(6, 4), 12, 13], {"images": [[1, 4, 4], [1, 6, 4]]}),
        ([20, 21, 22, 23, 24], {}),
        ([30, *video(3, 4, 6, apart=apart), 31, 32], {"videos": [[3, 4, 6]], "seconds": [0.5]}),
        (
            [*image(4, 8), 33, *video(2, 4, 4, apart=apart), 34],
            {"images": [[1, 4, 8]], "videos": [[2, 4, 4]], "seconds": [1.0]},
        ),
        ([35, 36, *image(8, 4)], {"images": [[1, 8, 4]], "labels": [IGNORED] * 10}),
        ([*image(4, 4), 37, 38], {"images": [[1, 4, 4]]}),
    ]
    return [sample(ids, seed=seed, **more) for seed, (ids, more) in enumerate(texts)]


def alone(model: Any, each: dict[str, Any], layout: MediaLayout) -> torch.Tensor:
    """Logits `[n, V]` of one sample in a model as shipped, one unpacked call."""
    ids = np.asarray(each["input_ids"])
    grids = {name: each.get(name) for name in ("image_grid_thw", "video_grid_thw")}
    extents = find_extents(ids, layout, **grids)
    positions = mrope_positions(len(ids), extents, layout, second_per_grid_ts=each.get("second_per_grid_ts"))
    call = {name: value for name, value in each.items() if name not in ("input_ids", "labels", "second_per_grid_ts")}
    return model(
        input_ids=torch.from_numpy(ids)[None],
        position_ids=torch.from_numpy(positions)[1:, None],
        use_cache=False,
        **call,
    ).logits[0]


def shipped(name: str, **options: Any) -> Any:
    """A tiny model as Transformers ships it."""
    return tiny_model(name, **options)
