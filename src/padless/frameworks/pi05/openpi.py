"""openpi's torch pi0 and pi0.5: any number of cameras, and real tokens only, without editing openpi."""

import functools
import sys
from collections.abc import Sequence
from typing import Any

from padless.errors import PadlessError
from padless.frameworks.pi05.installing import Installed, padding_free, trim


def padding_free_openpi(model: Any) -> Installed:
    """Train openpi's `PI0Pytorch` on real views and real prompt tokens only.

    Observations may then hold any cameras, in their own order: openpi insists on three keys otherwise. A camera whose
    `image_masks` are False in some samples is left out of just those.

    Args:
        model: `openpi.models_pytorch.pi0_pytorch.PI0Pytorch`, pi0 or pi0.5.

    Returns:
        A handle with `.remove()` and counts.

    Raises:
        PadlessError: When the model is of another kind, or padding-free already.
    """
    return _with_any_cameras(model, padding_free(model))


def trim_openpi(model: Any, *, buckets: Sequence[int] | None = None) -> Installed:
    """Encode real views only, cut prompts to the batch or to one of `buckets`; see `padless.frameworks.pi05.trim`."""
    return _with_any_cameras(model, trim(model, buckets=buckets))


def _with_any_cameras(model: Any, installed: Installed) -> Installed:
    inner = getattr(model, "_preprocess_observation", None)
    preprocessing = getattr(sys.modules[type(model).__module__], "_preprocessing", None)
    if inner is None or preprocessing is None:
        installed.remove()
        raise PadlessError(
            f"{type(model).__name__} is no PI0Pytorch of openpi (no _preprocess_observation, or its module has no "
            "_preprocessing); use padless.frameworks.pi05.padding_free(model)"
        )

    @functools.wraps(inner)
    def preprocess(observation: Any, *, train: bool = True) -> tuple[Any, ...]:
        done = preprocessing.preprocess_observation_pytorch(
            observation, train=train, image_keys=tuple(observation.images)
        )
        return (
            list(done.images.values()),
            list(done.image_masks.values()),
            done.tokenized_prompt,
            done.tokenized_prompt_mask,
            done.state,
        )

    installed.put(model, "_preprocess_observation", preprocess)
    return installed
