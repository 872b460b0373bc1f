"""How many patches and tokens an image takes, from its height and width alone: nothing is decoded."""

import math
from dataclasses import dataclass

from padless.errors import PadlessError

Grid = tuple[int, int, int]
MOST_UNEQUAL = 200  # Qwen-VL's processors refuse images whose sides differ by more


@dataclass(frozen=True, kw_only=True)
class PatchGrid:
    """How a processor turns pixels into patches.

    Attributes:
        patch: Pixels per side of a patch.
        merge: Patches per side of a token.
        temporal: Frames that share one patch of a video.
        min_pixels: Images below this are enlarged, and
        max_pixels: above this made smaller, sides kept at multiples of `patch * merge`.
        side: Fixed side of square views in pixels (SigLIP: 224); the limits above then mean nothing.

    Example:
        >>> grid = PatchGrid(patch=14).image(480, 640)
        >>> grid, PatchGrid(patch=14).tokens(grid)
        ((1, 34, 46), 391)
        >>> siglip = PatchGrid(patch=14, merge=1, temporal=1, side=224)
        >>> siglip.tokens(siglip.image(480, 640))
        256
    """

    patch: int
    merge: int = 2
    temporal: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280
    side: int | None = None

    def __post_init__(self) -> None:
        if min(self.patch, self.merge, self.temporal) < 1 or not 0 < self.min_pixels <= self.max_pixels:
            raise PadlessError(f"{self} has a size below 1, or min_pixels above max_pixels")
        if self.side is not None and self.side % (self.patch * self.merge):
            raise PadlessError(f"views of {self.side} pixels do not divide into tokens of {self.patch * self.merge}")

    @property
    def unit(self) -> int:
        """Pixels per side of a token: sides become multiples of it."""
        return self.patch * self.merge

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """The size an image is brought to (Qwen-VL's smart resize, arXiv 2409.12191).

        Raises:
            PadlessError: For an empty image, or one whose sides differ by more than 200 times.
        """
        if self.side is not None:
            return self.side, self.side
        short, long = sorted((height, width))
        if short < 1 or long > MOST_UNEQUAL * short:
            raise PadlessError(
                f"an image of {height} x {width} pixels: Qwen-VL takes sides that differ by at most {MOST_UNEQUAL} "
                "times; crop it, or leave it out and count it"
            )
        unit = self.unit
        # Python's round is to even, and so is that of the processors whose sizes these must be.
        near = round(height / unit) * unit, round(width / unit) * unit
        if near[0] * near[1] > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            return max(unit, math.floor(height / shrink / unit) * unit), max(
                unit, math.floor(width / shrink / unit) * unit
            )
        if near[0] * near[1] < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            return math.ceil(height * grow / unit) * unit, math.ceil(width * grow / unit) * unit
        return near

    def image(self, height: int, width: int) -> Grid:
        """Patches `(1, h, w)` of an image of `height x width` pixels."""
        high, wide = self.resized(height, width)
        return 1, high // self.patch, wide // self.patch

    def frames(self, count: int, height: int, width: int) -> Grid:
        """Patches `(t, h, w)` of a video whose `count` frames are each resized like an image; the last frame fills up.

        Processors that share one budget of pixels among the frames (Qwen3-VL) resize first: give the resized size.
        """
        if count < 1:
            raise PadlessError("a video without frames has no patches")
        _, h, w = self.image(height, width)
        return -(-count // self.temporal), h, w

    def tokens(self, grid: Grid) -> int:
        """Tokens of a grid in the decoder."""
        return grid[0] * grid[1] * grid[2] // self.merge**2


QWEN2_5_VL = PatchGrid(patch=14)
QWEN3_VL = PatchGrid(patch=16, min_pixels=65536, max_pixels=16777216)
SIGLIP_224 = PatchGrid(patch=14, merge=1, temporal=1, side=224)
