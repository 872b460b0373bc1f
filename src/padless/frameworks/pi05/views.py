"""Camera slots: which of them hold a view, and how to leave out those that do not."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from padless.errors import PadlessError
from padless.rows.tensors import host

_F = TypeVar("_F", bound=Callable[..., Any])


def untraced(function: _F) -> _F:
    """Keep a function out of compiled graphs: it reads masks on the host, and they differ from batch to batch."""
    return torch.compiler.disable(function)  # pyright: ignore[reportReturnType] - typed for its other uses too


def drop_masked(views: Mapping[str, Any], masks: Mapping[str, Any], names: Sequence[str] | None = None) -> tuple:
    """Leave out camera slots that no sample of the batch has a view in. It changes no output: nothing attends to them.

    Args:
        views: Slot name to its images `[B, ...]`.
        masks: Slot name to bool[B], True where the sample has this view; a name that is missing counts as all True, as
            in openpi.
        names: Slots to leave out. None: every slot that is masked throughout.

    Returns:
        `(views, masks)` without those slots.

    Raises:
        PadlessError: When a named slot is attended to in some sample. Leaving it out would be pruning, which changes
            what the model computes, whatever the picture shows: pi0-FAST hands over black images with mask True.

    Example:
        >>> views = {"base": "a", "wrist": "b"}
        >>> drop_masked(views, {"base": np.array([True]), "wrist": np.array([False])})[0]
        {'base': 'a'}
        >>> drop_masked(views, {"base": np.array([True]), "wrist": np.array([True])}, ["wrist"])
        Traceback (most recent call last):
            ...
        padless.errors.PadlessError: camera slot 'wrist' is attended to in 1 of 1 samples: leaving it out changes ...
    """
    real = {name: np.asarray(host(masks[name])).astype(bool) if name in masks else None for name in views}
    if names is None:
        names = [name for name, mask in real.items() if mask is not None and not mask.any()]
    for name in names:
        if name not in views:
            raise PadlessError(f"there is no camera slot {name!r}; there are {', '.join(map(repr, views))}")
        mask = real[name]
        if mask is None or mask.any():
            said = "all samples (it has no mask)" if mask is None else f"{int(mask.sum())} of {mask.size} samples"
            raise PadlessError(
                f"camera slot {name!r} is attended to in {said}: leaving it out changes what the model computes, even "
                "if the image is blank. That is pruning, not padding removal: measure it with `padless ablate`, then "
                "drop it at the data's source, for training and inference alike"
            )
    kept = [name for name in views if name not in names]
    if not kept:
        raise PadlessError(f"every camera slot is masked ({', '.join(views)}): a policy without a view is a mistake")
    return {name: views[name] for name in kept}, {name: masks[name] for name in kept if name in masks}


class EmbeddedViews(NamedTuple):
    """Encoded views, each sample's together.

    Attributes:
        features: `[B, C * tokens, width]`, C being the most views that a sample of this batch has; zeros where it has
            fewer.
        real: bool `[B, C * tokens]`.
        count: Views that were encoded; where no sample has any, one that stays masked.
        tokens: Tokens of one view.
    """

    features: torch.Tensor
    real: torch.Tensor
    count: int
    tokens: int


def embed_views(embed: Any, images: Sequence[torch.Tensor], masks: Sequence[torch.Tensor]) -> EmbeddedViews:
    """Encode real views only, all in one call of the tower, and move each sample's views together.

    Args:
        embed: The tower: `[V, ...]` to `[V, tokens, width]`.
        images: One `[B, ...]` per camera slot, all of one shape.
        masks: One bool[B] per slot.

    Returns:
        The views in their order, without gaps between them.

    Raises:
        PadlessError: When shapes differ, or masks and slots are not one to one.

    Example:
        >>> images = [torch.full((2, 1), 1.0), torch.full((2, 1), 2.0)]
        >>> masks = [torch.tensor([False, True]), torch.tensor([True, False])]
        >>> views = embed_views(lambda x: x[:, None], images, masks)
        >>> views.features.flatten(), views.real.flatten()
        (tensor([2., 1.]), tensor([True, True]))
    """
    if len(images) != len(masks) or not images:
        raise PadlessError(f"{len(masks)} image masks for {len(images)} camera slots: give one for each, and one slot")
    shapes = {tuple(image.shape) for image in images}
    if len(shapes) > 1 or any(image.ndim == 5 for image in images):
        raise PadlessError(
            f"camera slots have shapes {sorted(shapes)}: one image of one size per slot is expected (clips of several "
            "frames, [B, frames, ...], take other paths through the tower); leave this policy padded"
        )
    source, target, real, most = _places(masks, images[0].device)
    samples = len(real)
    real_images = torch.stack(list(images), dim=1).flatten(0, 1).index_select(0, source)
    features = embed(real_images)
    tokens, width = features.shape[1:]
    placed = features.new_zeros(samples * most, tokens, width)
    placed = placed.index_copy(0, target, features)
    return EmbeddedViews(
        features=placed.view(samples, most * tokens, width),
        real=real.repeat_interleave(tokens, dim=1),
        count=len(source),
        tokens=tokens,
    )


@untraced
def _places(masks: Sequence[torch.Tensor], device: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Which of the stacked images are encoded, where they go, which places are real `[B, most]`, and the most views."""
    there = np.stack([np.asarray(host(mask)).astype(bool) for mask in masks], axis=1)  # [B, slots]
    counts = there.sum(axis=1, keepdims=True)
    if not there.any():
        # The tower still runs, as it would padded: parallel ranks wait for its gradients, zeros though they are.
        there[0, 0] = True
    most = int(there.sum(axis=1).max())
    rank = there.cumsum(axis=1) - 1
    target = (np.arange(len(there))[:, None] * most + rank)[there]
    found = (np.flatnonzero(there), target, np.arange(most) < counts)
    source, places, real = (torch.from_numpy(each).to(device) for each in found)
    return source, places, real, most
