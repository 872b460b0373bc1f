"""An image that is known by where its bytes are: its size comes from the header, its pixels only when asked for."""

import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from padless.errors import PadlessError, require

_ORIENTATION = 0x0112  # the EXIF tag that cameras turn images by
_ON_ITS_SIDE = (5, 6, 7, 8)
# What decoders raise on bytes that are no image, or half of one.
_BROKEN = (
    OSError, ValueError, SyntaxError, EOFError, TypeError, IndexError, KeyError, AttributeError, OverflowError,
    MemoryError, NotImplementedError, struct.error, zlib.error, Warning,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ImageRef:
    """An image file, or the bytes of one.

    Attributes:
        name: How errors call it.
        path: The file; None where `data` holds the bytes.
        data: The encoded bytes (PNG, JPEG, ...).

    Example:
        >>> made = ImageRef.of_pixels(np.zeros((4, 6, 3), dtype=np.uint8))
        >>> made.size(), made.pixels().shape, made.pixels(height=2, width=2).shape
        ((4, 6), (4, 6, 3), (2, 2, 3))
    """

    name: str
    path: Path | None = None
    data: bytes | None = None

    def __post_init__(self) -> None:
        if (self.path is None) == (self.data is None):
            raise PadlessError(f"image {self.name}: give its file or its bytes, one of the two")

    @classmethod
    def of_pixels(cls, pixels: np.ndarray, name: str = "pixels") -> "ImageRef":
        """An image of `uint8[H, W, 3]`, encoded as PNG without loss."""
        require("PIL", extra="media", feature="images")
        from PIL import Image

        sink = io.BytesIO()
        Image.fromarray(pixels).save(sink, format="PNG")
        return cls(name=name, data=sink.getvalue())

    def size(self) -> tuple[int, int]:
        """`(height, width)` as seen upright; reads the header only.

        Raises:
            PadlessError: When it cannot be read or is no image.
        """
        with self._opened() as image:
            width, height = image.size
            turned = _orientation(image) in _ON_ITS_SIDE
        return (width, height) if turned else (height, width)

    def pixels(self, *, height: int | None = None, width: int | None = None) -> np.ndarray:
        """`uint8[H, W, 3]`, upright, in RGB; with a height and a width resized to them (bicubic).

        Raises:
            PadlessError: When it cannot be read or is no whole image.
        """
        from PIL import ImageOps

        with self._opened() as image:
            turned = _orientation(image) is not None
            upright = (ImageOps.exif_transpose(image) if turned else image).convert("RGB")
            if height is not None and width is not None and upright.size != (width, height):
                from PIL import Image

                upright = upright.resize((width, height), Image.Resampling.BICUBIC)
            return np.array(upright)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        require("PIL", extra="media", feature="images")
        from PIL import Image

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # A header may promise more pixels than memory holds.
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                with Image.open(self.path or io.BytesIO(self.data or b"")) as image:
                    yield image
        except (*_BROKEN, Image.DecompressionBombError) as error:
            raise PadlessError(
                f"cannot read image {self.name}: {type(error).__name__}: {str(error)[:120]}; it is damaged, cut short, "
                "missing or no image"
            ) from error


def _orientation(image: Any) -> int | None:
    """How the camera was held, as far as the header says; asking a PNG without EXIF would read all of its pixels."""
    return image.getexif().get(_ORIENTATION) if image.info.get("exif") or image.format == "TIFF" else None
