"""Rows in the language of JAX (Flax, MaxText, splash attention): segment ids and positions in a rectangle.

A mask made of ids lets slots with EQUAL ids see each other, 0 included: padding sees padding of its row, and never a
real token. Causality and windows are the model's, over the index in the row or over `positions`, which agree inside a
segment.
"""

from typing import Any, NamedTuple

import numpy as np

from padless.errors import PadlessError
from padless.masks.geometry import covering_pieces, tokens_of
from padless.rows import Batch
from padless.rows.tensors import host


class JaxIds(NamedTuple):
    """What `flax.linen.make_attention_mask(ids, ids, jnp.equal)` or splash attention's `SegmentIds` take.

    Attributes:
        segment_ids: int32[R, W], from 1 in each row; 0 is padding. Chunks have ids of their own.
        positions: int32[R, W], index in the segment (chunks do not restart it); 0 on padding.
    """

    segment_ids: np.ndarray
    positions: np.ndarray


def jax_segment_ids(batch: Batch) -> JaxIds:
    """Segment ids and positions of a rectangular batch, in numpy; JAX moves them.

    Raises:
        PadlessError: When rows differ in width, or for a rule that ids cannot say.

    Example:
        >>> from padless import collate
        >>> ids = jax_segment_ids(collate([[[5, 6, 7], [8, 9]], [[1, 2]]], capacity=6))
        >>> ids.segment_ids.tolist(), ids.positions.tolist()
        ([[1, 1, 1, 2, 2, 0], [1, 1, 0, 0, 0, 0]], [[0, 1, 2, 0, 1, 0], [0, 1, 0, 0, 0, 0]])
    """
    if batch.rule.has_ranks:
        raise PadlessError(
            f"{batch.rule} cannot be said in segment ids, which know no order inside a segment; give JAX the table: "
            "jax.nn.dot_product_attention(..., mask=padless.masks.rectangular_mask(batch))"
        )
    tokens = tokens_of(batch)
    cuts, owners = covering_pieces(batch)
    rows = host(batch.row_offsets)
    real = owners > 0
    row = np.searchsorted(rows, owners[real], side="left") - 1
    first = np.searchsorted(owners[real], rows[:-1] + 1)
    ids = np.zeros(len(owners), dtype=np.int32)
    ids[real] = np.arange(len(row)) - first[row] + 1
    positions = np.where(tokens.segment > 0, tokens.index, 0)
    return JaxIds(
        segment_ids=_rectangle(batch, np.repeat(ids, np.diff(cuts))),
        positions=_rectangle(batch, positions),
    )


def _rectangle(batch: Batch, values: np.ndarray) -> Any:
    return np.ascontiguousarray(batch.rectangle(values), dtype=np.int32)
