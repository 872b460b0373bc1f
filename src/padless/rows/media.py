"""Images and videos in samples: where their tokens lie, which positions they take, how the vision tower sees them.

All of it follows from the token ids and from each medium's grid of patches, before anything is decoded.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from padless.errors import PadlessError

Kind = Literal["image", "video"]
KINDS: tuple[Kind, ...] = ("image", "video")


@dataclass(frozen=True, kw_only=True)
class MediaLayout:
    """How one family of models writes images and videos into token ids, positions and its vision tower.

    Attributes:
        image_token: The id that stands for a piece of an image, as often as the image has tokens.
        video_token: The same for videos; None where there are none.
        merge: Patches per side that become one token (2: four patches, one token).
        time_step: Positions between the frames of a video per second of a grid step (Qwen2.5-VL: tokens per second).
        frames_apart: Whether each frame of a video stands alone between text (Qwen3-VL's timestamps) and is placed
            like an image.
        window: Side of the tower's attention windows in merged tokens; None where each frame attends as a whole.

    Example:
        >>> MediaLayout(image_token=90).tokens((1, 4, 8))
        8
    """

    image_token: int
    video_token: int | None = None
    merge: int = 2
    time_step: float = 1.0
    frames_apart: bool = False
    window: int | None = None

    def __post_init__(self) -> None:
        if self.merge < 1 or (self.window is not None and self.window < 1):
            raise PadlessError(f"merge={self.merge} and window={self.window} must be at least 1")

    def token(self, kind: Kind) -> int | None:
        """The id that stands for a piece of a medium of this kind."""
        return self.image_token if kind == "image" else self.video_token

    def tokens(self, grid: Sequence[int]) -> int:
        """How many tokens a grid `(t, h, w)` of patches becomes."""
        t, h, w = (int(n) for n in grid)
        if min(t, h, w) < 1 or h % self.merge or w % self.merge:
            raise PadlessError(
                f"a grid of {t} x {h} x {w} patches does not become tokens of {self.merge} x {self.merge} patches each"
            )
        return t * h * w // self.merge**2


class Extent(NamedTuple):
    """Tokens of one image, one video, or one frame of a video whose frames stand apart: always contiguous.

    Attributes:
        kind: `"image"` or `"video"`.
        number: Which medium of its kind in the sample, from 0.
        start: First token inside the sample.
        tokens: How many there are.
        grid: Patches `(t, h, w)` of this stretch.
    """

    kind: Kind
    number: int
    start: int
    tokens: int
    grid: tuple[int, int, int]

    @property
    def stop(self) -> int:
        """The token behind the last one."""
        return self.start + self.tokens


def find_extents(
    input_ids: np.ndarray, layout: MediaLayout, *, image_grid_thw: Any = None, video_grid_thw: Any = None
) -> list[Extent]:
    """Where each medium's tokens lie in a sample; media next to each other are told apart by their grids.

    Args:
        input_ids: int[n], one sample, with a placeholder for every token of every medium.
        layout: The model's.
        image_grid_thw: int[N, 3], patches of each image, in the order of their tokens.
        video_grid_thw: int[V, 3], patches of each video.

    Returns:
        The extents in the order of their tokens.

    Raises:
        PadlessError: When placeholders and grids do not match, or a medium was cut.

    Example:
        >>> layout = MediaLayout(image_token=9)
        >>> find_extents(np.array([1, 9, 9, 9, 2]), layout, image_grid_thw=[[1, 2, 2], [1, 2, 4]])
        [Extent(kind='image', number=0, start=1, tokens=1, grid=(1, 2, 2)),
         Extent(kind='image', number=1, start=2, tokens=2, grid=(1, 2, 4))]
    """
    found: list[Extent] = []
    for kind, grids in zip(KINDS, (image_grid_thw, video_grid_thw), strict=True):
        token = layout.token(kind)
        places = np.flatnonzero(input_ids == token) if token is not None else np.empty(0, np.int64)
        stretches = [
            (number, grid) for number, whole in enumerate(as_grids(grids)) for grid in _stretches(layout, kind, whole)
        ]
        sizes = [layout.tokens(grid) for _, grid in stretches]
        if sum(sizes) != len(places):
            raise PadlessError(
                f"a sample of {len(input_ids)} tokens holds {len(places)} {kind} placeholders (id {token}) and its "
                f"grids of {kind}s make {sum(sizes)}: a medium was cut, dropped or added; never split or truncate a "
                "sample inside one"
            )
        at = 0
        for (number, grid), size in zip(stretches, sizes, strict=True):
            mine = places[at : at + size]
            if mine[-1] - mine[0] != size - 1:
                raise PadlessError(
                    f"{kind} {number} has {size} tokens and they do not stand together: token {mine[0]} to {mine[-1]}; "
                    "grids must come in the order of their placeholders"
                )
            found.append(Extent(kind, number, int(mine[0]), size, grid))
            at += size
    return sorted(found, key=lambda extent: extent.start)


def expand_placeholders(
    input_ids: np.ndarray, layout: MediaLayout, *, image_grid_thw: Any = None, video_grid_thw: Any = None
) -> np.ndarray:
    """Repeat each placeholder as often as its medium has tokens.

    Args:
        input_ids: int[n] with one placeholder for each image (and each video; each frame of one whose frames stand
            apart), as a chat template writes them.
        layout: The model's.
        image_grid_thw: int[N, 3], patches of each image, in order.
        video_grid_thw: int[V, 3], patches of each video.

    Returns:
        int64[m], for every token of the expanded sample the token of `input_ids` that it comes from: index ids, labels
        or masks with it.

    Raises:
        PadlessError: When there are more or fewer placeholders than media.

    Example:
        >>> ids = np.array([1, 9, 2])
        >>> ids[expand_placeholders(ids, MediaLayout(image_token=9), image_grid_thw=[[1, 2, 6]])]
        array([1, 9, 9, 9, 2])
    """
    repeats = np.ones(len(input_ids), dtype=np.int64)
    for kind, grids in zip(KINDS, (image_grid_thw, video_grid_thw), strict=True):
        token = layout.token(kind)
        places = np.flatnonzero(input_ids == token) if token is not None else np.empty(0, np.int64)
        sizes = [layout.tokens(grid) for whole in as_grids(grids) for grid in _stretches(layout, kind, whole)]
        if len(sizes) != len(places):
            raise PadlessError(
                f"{len(places)} {kind} placeholders (id {token}) for {len(sizes)} {kind}s: write one for each"
            )
        repeats[places] = sizes
    return np.repeat(np.arange(len(input_ids)), repeats)


def mrope_positions(
    length: int, extents: Sequence[Extent], layout: MediaLayout, *, second_per_grid_ts: Any = None
) -> np.ndarray:
    """Positions of one sample: its text axis, then time, height and width (M-RoPE, arXiv 2409.12191).

    Text moves all axes on together. A medium spreads over height and width from where the text before it ended, and
    the text behind it goes on from the largest of the two.

    Args:
        length: Tokens of the sample.
        extents: From `find_extents`.
        layout: The model's.
        second_per_grid_ts: float[V], seconds between the grid's time steps of each video; 1 unless given.

    Returns:
        int64[4, length]; axis 0 counts from 0 to `length - 1`.

    Example:
        >>> layout = MediaLayout(image_token=9)
        >>> mrope_positions(6, find_extents(np.array([1, 9, 9, 9, 9, 2]), layout, image_grid_thw=[[1, 4, 4]]), layout)
        array([[0, 1, 2, 3, 4, 5],
               [0, 1, 1, 1, 1, 3],
               [0, 1, 1, 2, 2, 3],
               [0, 1, 2, 1, 2, 3]])
    """
    positions = np.empty((4, length), dtype=np.int64)
    positions[0] = np.arange(length)
    axes = positions[1:]
    at = now = 0
    for extent in extents:
        axes[:, at : extent.start] = now + np.arange(extent.start - at)
        now += extent.start - at
        t, h, w = extent.grid[0], extent.grid[1] // layout.merge, extent.grid[2] // layout.merge
        frames = _times(extent, layout, second_per_grid_ts)
        grid = np.meshgrid(frames, np.arange(h), np.arange(w), indexing="ij")
        axes[:, extent.start : extent.stop] = now + np.stack(grid).reshape(3, t * h * w)
        at, now = extent.stop, now + max(h, w)
    axes[:, at:] = now + np.arange(length - at)
    return positions


def tower_layout(grids: Any, layout: MediaLayout) -> dict[str, np.ndarray]:
    """The segments that a vision tower attends in, for all media of a batch.

    Windows of a frame come in the order of their size, largest first: neighbours of one shape go through a kernel
    together. The order changes nothing else, since a tower undoes it.

    Args:
        grids: int[N, 3], patches of each medium.
        layout: The model's.

    Returns:
        `cu_seqlens int32[F + 1]`, patches of each frame; and for a tower with windows `window_index int64[M]`, which
        merged token comes where, and `cu_window_seqlens int32[W + 1]`, in patches.

    Example:
        >>> tower_layout([[2, 4, 6]], MediaLayout(image_token=9, window=2))["cu_window_seqlens"]
        array([ 0, 16, 24, 40, 48], dtype=int32)
    """
    whole = as_grids(grids)
    frames = np.array([h * w for t, h, w in whole for _ in range(t)], dtype=np.int64)
    found = {"cu_seqlens": _offsets(frames)}
    if layout.window is None:
        return found
    orders, sizes, at = [], [], 0
    for t, h, w in whole:
        order, counts = _windows(h // layout.merge, w // layout.merge, layout.window)
        orders.append((at + np.arange(t)[:, None] * len(order) + order).ravel())
        sizes += [counts] * t
        at += t * len(order)
    return found | {
        "window_index": np.concatenate(orders),
        "cu_window_seqlens": _offsets(np.concatenate(sizes) * layout.merge**2),
    }


def as_grids(grids: Any) -> list[tuple[int, int, int]]:
    """Grids as a list of `(t, h, w)`; None and empty arrays are no grids."""
    if grids is None:
        return []
    array = np.asarray(grids)
    if array.size == 0:
        return []
    if array.ndim != 2 or array.shape[1] != 3 or array.dtype.kind not in "iu":
        raise PadlessError(
            f"grids must be whole numbers [media, 3] (time, height, width); got {array.dtype}, {array.shape}"
        )
    return [(t, h, w) for t, h, w in array.tolist()]


def _stretches(layout: MediaLayout, kind: Kind, grid: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    t, h, w = grid
    return [(1, h, w)] * t if kind == "video" and layout.frames_apart else [grid]


def _times(extent: Extent, layout: MediaLayout, second_per_grid_ts: Any) -> np.ndarray:
    """Time positions of the frames, rounded down as Qwen-VL does: in float32."""
    frames = np.arange(extent.grid[0])
    if extent.kind == "image" or layout.frames_apart:
        return frames
    seconds = 1.0 if second_per_grid_ts is None else float(np.asarray(second_per_grid_ts)[extent.number])
    return (frames.astype(np.float32) * np.float32(layout.time_step * seconds)).astype(np.int64)


@functools.lru_cache(maxsize=1024)
def _windows(height: int, width: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of one frame window by window, and how many each window has."""
    rows, columns = np.divmod(np.arange(height * width), width)
    window = rows // side * -(-width // side) + columns // side
    counts = np.bincount(window)
    by_size = np.argsort(-counts, kind="stable")
    rank = np.empty_like(by_size)
    rank[by_size] = np.arange(len(by_size))
    return np.argsort(rank[window], kind="stable"), counts[by_size]


def _offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
