"""Extents, positions and tower segments of media, from ids and grids alone, against naive ways of finding them."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.errors import PadlessError
from padless.rows import MediaLayout, collate_media
from padless.rows.grids import QWEN2_5_VL, SIGLIP_224, PatchGrid
from padless.rows.media import find_extents, mrope_positions, tower_layout

IMAGE, VIDEO = 90, 91
LAYOUT = MediaLayout(image_token=IMAGE, video_token=VIDEO, window=2)
sides = st.integers(1, 5).map(lambda n: 2 * n)
grids = st.tuples(st.just(1), sides, sides)
quick = settings(max_examples=40, deadline=None)


@st.composite
def samples(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Text and images in any order, images often next to each other."""
    parts = draw(st.lists(st.one_of(st.integers(1, 4), grids), min_size=1, max_size=6))
    ids: list[int] = []
    images = []
    for part in parts:
        if isinstance(part, int):
            ids += range(1, part + 1)
        else:
            ids += [IMAGE] * LAYOUT.tokens(part)
            images.append(part)
    return ids, images


@given(samples())
@quick
def test_extents_cover_the_placeholders_once_and_in_order(drawn) -> None:
    ids, images = drawn
    extents = find_extents(np.array(ids), LAYOUT, image_grid_thw=images or None)
    assert [extent.grid for extent in extents] == images
    covered = [at for extent in extents for at in range(extent.start, extent.stop)]
    assert covered == [at for at, token in enumerate(ids) if token == IMAGE]


@given(samples())
@quick
def test_positions_are_those_of_a_loop_over_tokens(drawn) -> None:
    ids, images = drawn
    found = mrope_positions(len(ids), find_extents(np.array(ids), LAYOUT, image_grid_thw=images), LAYOUT)
    now, expected, at = 0, [], 0
    queue = list(images)
    while at < len(ids):
        if ids[at] != IMAGE:
            expected.append((now, now, now))
            now, at = now + 1, at + 1
            continue
        _, h, w = queue.pop(0)
        for y in range(h // 2):
            expected += [(now, now + y, now + x) for x in range(w // 2)]
        at += h * w // 4
        now += max(h, w) // 2
    assert found[0].tolist() == list(range(len(ids)))
    assert found[1:].T.tolist() == [list(p) for p in expected]


@given(st.lists(st.tuples(st.integers(1, 3), sides, sides), min_size=1, max_size=4), st.integers(1, 4))
@quick
def test_windows_are_those_of_a_loop_over_patches(media, side) -> None:
    layout = MediaLayout(image_token=IMAGE, window=side)
    made = tower_layout(media, layout)
    order, cuts = made["window_index"], made["cu_window_seqlens"]
    assert sorted(order.tolist()) == list(range(len(order)))
    expected: list[list[int]] = []
    at = 0
    for t, h, w in media:
        for frame in range(t):
            windows: dict[tuple[int, int], list[int]] = {}
            for y in range(h // 2):
                for x in range(w // 2):
                    windows.setdefault((y // side, x // side), []).append(at + (frame * (h // 2) + y) * (w // 2) + x)
            expected += sorted(windows.values(), key=lambda window: -len(window))  # a stable sort, as there
        at += t * h * w // 4
    found = [order[a // 4 : b // 4].tolist() for a, b in itertools.pairwise(cuts)]
    assert found == expected
    frames = np.cumsum([0] + [h * w for t, h, w in media for _ in range(t)])
    assert made["cu_seqlens"].tolist() == frames.tolist()
    assert set(frames.tolist()) <= set(cuts.tolist()), "no window lies across two frames"


@given(samples(), st.integers(1, 3))
@quick
def test_a_sample_cut_inside_an_image_is_refused(drawn, cut) -> None:
    ids, images = drawn
    if not images or ids[-cut:] != [IMAGE] * cut:
        ids, images = [*ids, *[IMAGE] * 4], [*images, (1, 4, 4)]
    cut_ids = ids[:-cut]
    if not cut_ids:
        return
    with pytest.raises(PadlessError, match="was cut, dropped or added"):
        collate_media([{"input_ids": cut_ids, "image_grid_thw": np.array(images)}], LAYOUT)


def test_media_stay_beside_their_tokens_whatever_rows_share() -> None:
    def seen(seed: int, *images: tuple[int, int, int]) -> dict:
        patches = sum(h * w for _, h, w in images)
        ids = [1, *(IMAGE for _ in range(patches // 4)), 2]
        pixels = np.full((patches, 3), float(seed))
        return {"input_ids": ids, "image_grid_thw": np.array(images), "pixel_values": pixels, "sample_id": seed}

    rows = [[seen(1, (1, 2, 2)), {"input_ids": [3, 4]}], [seen(2, (1, 4, 2), (1, 2, 2)), seen(3, (1, 2, 6))]]
    batch = collate_media(rows, LAYOUT, capacity=16, align=4)
    assert batch.media["image_grid_thw"].tolist() == [[1, 2, 2], [1, 4, 2], [1, 2, 2], [1, 2, 6]]
    assert batch.media["image_segment_ids"].tolist() == [1, 3, 3, 4]
    assert batch.media["pixel_values"][:, 0].tolist() == [1.0] * 4 + [2.0] * 12 + [3.0] * 12
    patches = batch.media["image_grid_thw"].prod(axis=1)
    tokens = np.bincount(batch.media["image_segment_ids"], weights=patches // 4, minlength=5)[1:]
    held = [int((ids == IMAGE).sum()) for ids in batch.unpack(batch.input_ids)]
    assert held == tokens.tolist(), "every segment holds the tokens of the media that are its own"
    assert batch.position_ids.shape == (4, 32)
    moved = batch.torch().media
    assert moved["pixel_values"].shape == (28, 3)


def test_placeholders_are_no_targets_unless_labels_say_so() -> None:
    silent = {"input_ids": [1, IMAGE, 2, 3], "image_grid_thw": [[1, 2, 2]]}
    assert collate_media([silent], LAYOUT).labels.tolist() == [-100, -100, 2, 3]
    said = {**silent, "labels": [-100, IMAGE, -100, 3]}
    assert collate_media([said], LAYOUT).labels.tolist() == [-100, IMAGE, -100, 3]


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"input_ids": [1, IMAGE, 2]}, "its grids of images make 0"),
        ({"input_ids": [1, 2], "image_grid_thw": [[1, 2, 2]]}, "0 image placeholders"),
        ({"input_ids": [1, IMAGE, 2, IMAGE], "image_grid_thw": [[1, 2, 4]]}, "do not stand together"),
        ({"input_ids": [1, IMAGE], "image_grid_thw": [[1, 3, 2]]}, "does not become tokens"),
        ({"input_ids": [1, IMAGE], "image_grid_thw": [1, 2, 2]}, r"\[media, 3\]"),
        ({"input_ids": [1, IMAGE], "image_grid_thw": [[1, 2, 2]], "pixel_values": np.zeros((3, 5))}, "4 patches"),
        ({"input_ids": [1, 2], "pixel_values": np.zeros((3, 5))}, "0 patches"),
        ({"input_ids": [1, IMAGE], "image_grid_thw": [[1, 2, 2]], "pixel_values": [[0.0]] * 4}, "is a list"),
        ({"input_ids": [1, 2], "second_per_grid_ts": [0.5]}, "1 values for 0 videos"),
    ],
)
def test_what_does_not_fit_together_is_refused(broken, says) -> None:
    with pytest.raises(PadlessError, match=says):
        collate_media([broken], LAYOUT)


def test_pixels_of_some_samples_only_are_refused() -> None:
    seen = {"input_ids": [1, IMAGE], "image_grid_thw": [[1, 2, 2]]}
    with pytest.raises(PadlessError, match="1 of 2 samples"):
        collate_media([seen, {**seen, "pixel_values": np.zeros((4, 5))}], LAYOUT)


def test_pixels_are_joined_whatever_holds_them() -> None:
    torch = pytest.importorskip("torch")
    seen = {"input_ids": [1, IMAGE], "image_grid_thw": [[1, 2, 2]]}
    arrays, tensors = ({**seen, "pixel_values": make((4, 5))} for make in (np.zeros, torch.ones))
    for samples in ([arrays, tensors], [tensors, arrays]):
        media = collate_media(samples, LAYOUT).media
        assert media is not None
        assert [float(part.sum()) for part in media["pixel_values"].split(4)] == [
            float(each["pixel_values"].sum()) for each in samples
        ]
    with pytest.raises(PadlessError, match=r"\[5, 6\] values"):
        collate_media([arrays, {**seen, "pixel_values": np.zeros((4, 6))}], LAYOUT)


def test_grids_of_views_and_of_images() -> None:
    assert SIGLIP_224.tokens(SIGLIP_224.image(480, 640)) == 256
    assert QWEN2_5_VL.frames(5, 480, 640) == (3, 34, 46)
    with pytest.raises(PadlessError, match="200 times"):
        QWEN2_5_VL.image(1, 1000)
    with pytest.raises(PadlessError, match="divide"):
        PatchGrid(patch=14, side=100)


@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([14, 16]))
@settings(max_examples=200, deadline=None)
def test_sizes_keep_their_limits_and_units(height, width, patch) -> None:
    if max(height, width) > 200 * min(height, width):
        return
    grid = PatchGrid(patch=patch, min_pixels=3136, max_pixels=200_000)
    high, wide = grid.resized(height, width)
    assert high % grid.unit == wide % grid.unit == 0
    assert min(high, wide) >= grid.unit
    assert high * wide >= 3136
    # One side may be held up at a whole token while the other shrinks; only such strips pass the limit.
    assert high * wide <= 200_000 or min(high, wide) == grid.unit
