"""Patches are those of Transformers' own processor for images, and those of a loop over pixels for videos."""

import numpy as np
import pytest

from padless.errors import PadlessError
from padless.rows.grids import PatchGrid
from padless.rows.patches import CLIP_MEAN, CLIP_STD, patchify


@pytest.mark.parametrize("size", [(30, 50), (56, 56), (100, 40), (17, 90)])
@pytest.mark.interop
def test_images_are_those_of_transformers(size: tuple[int, int]) -> None:
    from PIL import Image
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    from padless.corpus.multimodal import ImageRef

    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3)).astype(np.uint8)
    grid = PatchGrid(patch=14, max_pixels=56 * 56 * 4)
    limits = {"shortest_edge": grid.min_pixels, "longest_edge": grid.max_pixels}
    theirs = Qwen2VLImageProcessorPil(size=limits)(images=[Image.fromarray(pixels)], return_tensors="np")
    height, width = grid.resized(*size)
    mine = patchify(ImageRef.of_pixels(pixels).pixels(height=height, width=width), grid)
    assert theirs["image_grid_thw"].tolist() == [list(grid.image(*size))]
    np.testing.assert_allclose(mine, theirs["pixel_values"], atol=1e-5)


def test_videos_are_those_of_a_loop() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (3, 8, 12, 3)).astype(np.uint8)
    grid = PatchGrid(patch=2, merge=2)
    found = patchify(frames, grid)
    filled = np.concatenate([frames, frames[-1:]])
    expected = []
    for t in range(2):
        for by in range(2):
            for bx in range(3):
                for y in range(2 * by, 2 * by + 2):
                    for x in range(2 * bx, 2 * bx + 2):
                        patch = filled[2 * t : 2 * t + 2, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2]
                        scaled = (patch / 255 - np.array(CLIP_MEAN)) / np.array(CLIP_STD)
                        expected.append(scaled.transpose(3, 0, 1, 2).ravel())
    np.testing.assert_allclose(found, np.stack(expected), atol=1e-5)


def test_sides_that_do_not_divide_are_refused() -> None:
    with pytest.raises(PadlessError, match="resize them to"):
        patchify(np.zeros((30, 28, 3), dtype=np.uint8), PatchGrid(patch=14))
