"""LeRobot's pi0, pi0.5 policies and their processors: what to change, in place, without editing LeRobot.

In the order of worth: `padding_free_policy` (or `trim_policy` for compiled models) changes how the policy runs and
needs nothing else; `drop_empty_cameras` and `dynamic_prompts` are for those who want no change to the model's methods.
Everything here keeps losses and actions as they are; leaving out a camera that has pictures is not here on purpose.
"""

import functools
from collections.abc import Collection, Sequence
from typing import Any

from padless.errors import PadlessError
from padless.frameworks.pi05.installing import Installed, padding_free, trim

_EMPTY = ".empty_camera_"


def padding_free_policy(policy: Any) -> Installed:
    """Train a LeRobot policy on real views and real prompt tokens only.

    A batch may say that a camera is missing in some of its samples: `batch[f"{camera}_is_pad"]`, bool[B].

    Args:
        policy: `PI0Policy` or `PI05Policy`.

    Returns:
        A handle with `.remove()` and counts.

    Raises:
        PadlessError: When the policy is compiled, or not of that kind.
    """
    if getattr(policy.config, "compile_model", False):
        raise PadlessError(
            "this policy is compiled (config.compile_model), and packed rows have another length in every batch: each "
            "would be compiled anew; use trim_policy(policy, buckets=prompt_buckets(...)) instead"
        )
    return _with_ragged_views(policy, padding_free(policy.model))


def trim_policy(policy: Any, *, buckets: Sequence[int] | None = None) -> Installed:
    """Encode real views only, cut prompts to the batch or to one of `buckets`; see `padless.frameworks.pi05.trim`."""
    return _with_ragged_views(policy, trim(policy.model, buckets=buckets))


def dynamic_prompts(preprocessor: Any) -> None:
    """Pad prompts to the longest of each batch instead of `max_length`.

    Prompts are as long as before, truncation included. The setting is saved with the processor.

    Args:
        preprocessor: The pipeline of `make_pre_post_processors`.

    Raises:
        PadlessError: When the pipeline has no tokenizer step, or several.
    """
    steps = [step for step in preprocessor.steps if hasattr(step, "padding") and hasattr(step, "max_length")]
    if len(steps) != 1:
        names = ", ".join(type(step).__name__ for step in preprocessor.steps)
        raise PadlessError(f"{len(steps)} tokenizer steps (with padding and max_length) among {names}; expected one")
    steps[0].padding = "longest"


def drop_empty_cameras(policy: Any, dataset_keys: Collection[str]) -> tuple[str, ...]:
    """Take camera features out of a policy's config that its data set does not have; LeRobot fills them with -1.

    Args:
        policy: `PI0Policy` or `PI05Policy`; its `config.input_features` is changed.
        dataset_keys: Feature names of the data set (`dataset.meta.features`), after any renaming.

    Returns:
        What was taken out.

    Raises:
        PadlessError: When nothing would be left, or an `empty_camera` is a feature of the data set and has pictures.
    """
    config = policy.config
    cameras = list(config.image_features)
    missing = tuple(name for name in cameras if name not in dataset_keys)
    filled = [name for name in cameras if _EMPTY in name and name in dataset_keys]
    if filled:
        raise PadlessError(
            f"{', '.join(filled)} is a feature of the data set: the policy attends to it, so leaving it out is "
            "pruning, not padding removal; measure it with `padless ablate`"
        )
    if len(missing) == len(cameras):
        raise PadlessError(f"the data set has none of the policy's cameras ({', '.join(cameras)}): check the renaming")
    for name in missing:
        del config.input_features[name]
    config.empty_cameras = 0
    return missing


def _with_ragged_views(policy: Any, installed: Installed) -> Installed:
    inner = policy._preprocess_images

    @functools.wraps(inner)
    def preprocess(batch: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        images, masks = inner(batch)
        # LeRobot's order: cameras that are in the batch, then those that are not.
        present = [name for name in policy.config.image_features if name in batch]
        for slot, name in enumerate(present):
            absent = batch.get(f"{name}_is_pad")
            if absent is not None and masks[slot].ndim == 1:
                masks[slot] = masks[slot] & ~absent.to(masks[slot].device).bool().reshape(masks[slot].shape)
        return images, masks

    installed.put(policy, "_preprocess_images", preprocess)
    return installed
