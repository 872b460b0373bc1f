"""Pixels to the rows of patches that a vision tower takes, in the order of Qwen-VL's processors."""

from collections.abc import Sequence

import numpy as np

from padless.errors import PadlessError
from padless.rows.grids import PatchGrid

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


def patchify(
    frames: np.ndarray, grid: PatchGrid, *, mean: Sequence[float] = CLIP_MEAN, std: Sequence[float] = CLIP_STD
) -> np.ndarray:
    """Patches of an image or a video that has its final size.

    Args:
        frames: `uint8[H, W, 3]`, or `uint8[F, H, W, 3]`; sides are multiples of `patch * merge`.
        grid: The processor's sizes. An image is repeated, and a video's last frame is, to fill `grid.temporal`.
        mean: Taken from the values scaled to 0..1, per channel, and
        std: divided by.

    Returns:
        `float32[t * h * w, 3 * temporal * patch * patch]`; the patches of one token stand together.

    Raises:
        PadlessError: When the sides are no multiples.

    Example:
        >>> patchify(np.zeros((28, 56, 3), dtype=np.uint8), PatchGrid(patch=14)).shape
        (8, 1176)
    """
    video = frames if frames.ndim == 4 else frames[None]
    count, height, width, channels = video.shape
    patch, merge, temporal = grid.patch, grid.merge, grid.temporal
    if height % grid.unit or width % grid.unit:
        raise PadlessError(
            f"frames of {height} x {width} pixels are no multiples of {grid.unit}: resize them to "
            f"{grid.resized(height, width)} first"
        )
    scaled = (video.astype(np.float32) / 255 - np.asarray(mean, np.float32)) / np.asarray(std, np.float32)
    filled = np.concatenate([scaled, np.repeat(scaled[-1:], -count % temporal, axis=0)])
    h, w = height // patch, width // patch
    cut = filled.reshape(-1, temporal, h // merge, merge, patch, w // merge, merge, patch, channels)
    # Time, block rows, block columns, rows and columns in the block; then channel, frame and pixels of the patch.
    ordered = cut.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    return np.ascontiguousarray(ordered, dtype=np.float32).reshape(
        len(filled) // temporal * h * w, channels * temporal * patch * patch
    )
