"""The dialect of JAX trainers (grain, MaxText, T5X): rectangles with segment ids and positions beside each feature.

Names are MaxText's: `inputs`, `inputs_segmentation`, `inputs_position`, and the same three for `targets`. Their
`targets` are shifted, and a target counts where `targets_segmentation` is not 0. Attention masks compare
`inputs_segmentation` (0 is padding, which matches only padding). Every shape is `[R, capacity]`, so a jitted step
compiles once.
"""

from typing import Any

import numpy as np

from padless.frameworks.refusals import refuse_media, refuse_ranks
from padless.masks import jax_segment_ids
from padless.rows import IGNORED, Batch


def jax_batch(batch: Batch) -> dict[str, Any]:
    """A rectangular batch as JAX trainers take it, in numpy; `jax.device_put` or `jax.numpy.asarray` moves it.

    Args:
        batch: Numpy arrays collated with `capacity=...`, so that rows have one width.

    Returns:
        Six `int32[R, capacity]` arrays. Segment ids count from 1 in each row, as grain has it.

    Raises:
        PadlessError: When rows differ in width, or the rule is none that segment ids can say.

    Example:
        >>> from padless import collate
        >>> rows = jax_batch(collate([[[5, 6, 7], [8, 9]], [[1, 2]]], capacity=6))
        >>> rows["inputs_segmentation"].tolist()
        [[1, 1, 1, 2, 2, 0], [1, 1, 0, 0, 0, 0]]
        >>> rows["targets"].tolist()
        [[6, 7, 0, 9, 0, 0], [2, 0, 0, 0, 0, 0]]
    """
    refuse_media(batch, "JAX")
    refuse_ranks(batch, "JAX")
    text_positions = batch.position_ids if batch.position_ids.ndim == 1 else batch.position_ids[0]
    labels = batch.rectangle(batch.shifted_labels())
    segmentation = jax_segment_ids(batch).segment_ids
    positions = np.where(segmentation > 0, batch.rectangle(text_positions), 0)
    return {
        name: values.astype(np.int32)
        for name, values in {
            "inputs": batch.rectangle(batch.input_ids),
            "inputs_segmentation": segmentation,
            "inputs_position": positions,
            "targets": np.where(labels != IGNORED, labels, 0),
            "targets_segmentation": np.where(labels != IGNORED, segmentation, 0),
            "targets_position": positions,
        }.items()
    }
