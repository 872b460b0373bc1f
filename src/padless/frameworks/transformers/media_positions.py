"""Positions of packed rows with images: made per segment when the caller has none, refused when they cannot be."""

import itertools
from typing import Any

import numpy as np
import torch

from padless.errors import PadlessError
from padless.frameworks.transformers.boundaries import Boundaries
from padless.rows import MediaLayout
from padless.rows.media import find_extents, mrope_positions
from padless.rows.media_collate import GRIDS


def give_media_positions(arguments: dict[str, Any], boundaries: Boundaries, layout: MediaLayout) -> None:
    """Replace missing or one-axis positions of a packed call that holds images by those of each segment alone.

    With one axis an image's tokens would lie on a line, which is another input than the sample alone.

    Args:
        arguments: Of the forward call; `position_ids` is set to `[4, rows, length]` where it is needed.
        boundaries: The call's segments.
        layout: The model's.

    Raises:
        PadlessError: When images come as embeddings without positions, grids and tokens do not match, or a medium lies
            across a boundary.
    """
    positions, ids = arguments.get("position_ids"), arguments.get("input_ids")
    if positions is not None and positions.ndim == 3:
        return
    grids = {name: arguments.get(name) for name in GRIDS.values()}
    given = any(grid is not None for grid in grids.values())
    if ids is None:
        if given:
            raise PadlessError(
                "a packed call with inputs_embeds and images has no position_ids of several axes: which tokens are "
                "images is unknown; give position_ids [4, rows, length], made for each sample alone"
            )
        return
    if not given:
        return  # placeholders without media are text to the model, packed and alone
    seconds = arguments.get("second_per_grid_ts")
    made = _positions(
        ids.reshape(-1).cpu().numpy(),
        boundaries.offsets,
        layout,
        {name: None if grid is None else grid.cpu().numpy() for name, grid in grids.items()},
        None if seconds is None else torch.as_tensor(seconds).cpu().numpy(),
    )
    arguments["position_ids"] = torch.from_numpy(made).to(ids.device).view(4, *ids.shape)


def _positions(
    ids: np.ndarray, offsets: tuple[int, ...], layout: MediaLayout, grids: dict[str, Any], seconds: Any
) -> np.ndarray:
    """`[4, T]`: every segment takes the media whose tokens it holds, in order."""
    at = dict.fromkeys(grids, 0)
    made = []
    for start, end in itertools.pairwise(offsets):
        own, mine = ids[start:end], {}
        before = dict(at)
        for (name, grid), token in zip(grids.items(), (layout.image_token, layout.video_token), strict=True):
            wanted = int((own == token).sum()) if token is not None else 0
            while wanted > 0 and grid is not None and at[name] < len(grid):
                wanted -= layout.tokens(grid[at[name]])
                at[name] += 1
            mine[name] = None if grid is None else grid[before[name] : at[name]]
        extents = find_extents(own, layout, **mine)
        first_video = before[GRIDS["video"]]
        timing = None if seconds is None else seconds[first_video:]
        made.append(mrope_positions(end - start, extents, layout, second_per_grid_ts=timing))
    return np.concatenate(made, axis=1)
