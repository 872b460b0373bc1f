"""What padless works out from ids and grids is what Transformers' own code works out."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.frameworks.qwen_vl import layout_of
from padless.rows.grids import PatchGrid
from padless.rows.media import find_extents, mrope_positions, tower_layout

from .qwen_samples import END, IMAGE, NAMES, START, VIDEO, shipped, video

sides = st.integers(1, 4).map(lambda n: 2 * n)
media = st.tuples(st.sampled_from(["image", "video"]), st.integers(1, 3), sides, sides)
MODELS = {name: shipped(name) for name in NAMES}


@pytest.mark.parametrize("name", MODELS)
@given(st.lists(st.one_of(st.integers(1, 3), media), min_size=1, max_size=5), st.sampled_from([None, 0.5, 1.3, 2.0]))
@settings(max_examples=25, deadline=None)
def test_positions(name: str, parts: list[Any], pace: float | None) -> None:
    """Transformers cannot tell neighbouring images apart, so here each has its marks around it."""
    layout = layout_of(MODELS[name])
    ids: list[int] = []
    grids: dict[str, list] = {"image": [], "video": []}
    for part in parts:
        if isinstance(part, int):
            ids += range(5, 5 + part)
            continue
        kind, t, h, w = part
        if kind == "image":
            ids += [START, *[IMAGE] * (h * w // 4), END]
            grids[kind].append([1, h, w])
        else:
            ids += video(t, h, w, apart=layout.frames_apart)
            grids[kind].append([t, h, w])
    given_grids = {f"{kind}_grid_thw": torch.tensor(values) if values else None for kind, values in grids.items()}
    seconds = None if pace is None else [pace] * len(grids["video"])
    array = np.array(ids)
    mine = mrope_positions(len(ids), find_extents(array, layout, **given_grids), layout, second_per_grid_ts=seconds)
    kinds = torch.from_numpy((array == IMAGE) + 2 * (array == VIDEO))[None]
    more = {"second_per_grid_ts": seconds} if name == "qwen2_5_vl" else {}
    if name == "qwen2_vl" and pace is not None:
        return  # it knows no seconds
    theirs, _ = MODELS[name].model.get_rope_index(torch.from_numpy(array)[None], kinds, **given_grids, **more)
    assert mine[1:].tolist() == theirs[:, 0].tolist()


@given(st.lists(st.tuples(st.integers(1, 3), sides, sides), min_size=1, max_size=4))
@settings(max_examples=25, deadline=None)
def test_tower_segments(grids: list[tuple[int, int, int]]) -> None:
    from transformers.vision_utils import get_vision_cu_seqlens, get_vision_window_index

    layout = layout_of(MODELS["qwen2_5_vl"])
    made, given_grids = tower_layout(grids, layout), torch.tensor(grids)
    assert made["cu_seqlens"].tolist() == get_vision_cu_seqlens(given_grids).tolist()
    order, cuts = get_vision_window_index(given_grids, 2, 16, 4)

    def windows(index: Any, offsets: Any) -> set[tuple[int, ...]]:
        return {tuple(index[a // 4 : b // 4].tolist()) for a, b in itertools.pairwise(offsets)}

    assert windows(made["window_index"], made["cu_window_seqlens"]) == windows(order, cuts.tolist())


@given(st.integers(1, 2000), st.integers(1, 2000))
@settings(max_examples=300, deadline=None)
def test_smart_resize(height: int, width: int) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    if max(height, width) > 200 * min(height, width):
        return
    for patch, least, most in ((14, 3136, 1_003_520), (16, 65_536, 262_144), (4, 64, 4096)):
        grid = PatchGrid(patch=patch, min_pixels=least, max_pixels=most)
        theirs = smart_resize(height, width, factor=2 * patch, min_pixels=least, max_pixels=most)
        assert grid.resized(height, width) == theirs
