"""The plain dialect: a dictionary of arrays, and a table of rows, under padless's own names."""

from typing import Any

import numpy as np
import pyarrow as pa

from padless.frameworks.refusals import refuse_media, refuse_padding
from padless.rows import Batch


def plain_batch(batch: Batch) -> dict[str, Any]:
    """A batch as a flat dictionary, for loops and models that know nothing of padless.

    Args:
        batch: Arrays or tensors; they are passed on, not copied.

    Returns:
        `input_ids, labels [T]` (labels unshifted), `position_ids [T] or [A, T]`, `segment_ids int32[T]` (0 is
        padding), `cu_seqlens, cu_seqlens_padded int32[S + 1]`, `max_seqlen int`, `num_targets int`, and
        `loss_weights [T]`, `ranks int32[T]` and the entries of `media` where there are some.

    Example:
        >>> from padless import collate
        >>> plain_batch(collate([[5, 6, 7], [8, 9]]))["cu_seqlens"]
        array([0, 3, 5], dtype=int32)
    """
    fields = {
        "input_ids": batch.input_ids,
        "labels": batch.labels,
        "position_ids": batch.position_ids,
        "segment_ids": batch.segment_ids,
        "cu_seqlens": batch.cu_seqlens,
        "cu_seqlens_padded": batch.cu_seqlens_padded,
        "max_seqlen": batch.max_seqlen,
        "num_targets": batch.num_targets,
        "loss_weights": batch.loss_weights,
        "ranks": batch.ranks,
        **(batch.media or {}),
    }
    return {name: value for name, value in fields.items() if value is not None}


def plain_table(batch: Batch) -> pa.Table:
    """The rows of a batch as a table, one line per row.

    Args:
        batch: Numpy arrays without padding, as a dataset with `align=1` and no `capacity` gives them.

    Returns:
        Columns `input_ids list<int32>`, `labels list<int32>` (unshifted, -100 where there is no target),
        `position_ids list<int32>`, `seq_lengths list<int32>` (one per segment) and `sample_ids list<int64>`.

    Raises:
        PadlessError: When the batch holds padding.

    Example:
        >>> from padless import collate
        >>> plain_table(collate([[5, 6, 7], [8, 9]])).to_pylist()
        [{'input_ids': [5, 6, 7, 8, 9], 'labels': [-100, 6, 7, -100, 9], 'position_ids': [0, 1, 2, 0, 1],
          'seq_lengths': [3, 2], 'sample_ids': [-1, -1]}]
    """
    refuse_padding(batch, "plain")
    refuse_media(batch, "plain table")
    positions = batch.position_ids if batch.position_ids.ndim == 1 else batch.position_ids[0]
    return pa.table(
        {
            "input_ids": per_token(batch, batch.input_ids, np.int32),
            "labels": per_token(batch, batch.labels, np.int32),
            "position_ids": per_token(batch, positions, np.int32),
            "seq_lengths": per_segment(batch, batch.lengths, np.int32),
            "sample_ids": per_segment(batch, batch.sample_ids, np.int64),
        }
    )


def per_token(batch: Batch, values: Any, dtype: Any) -> pa.ListArray:
    """Per-token values as one list per row."""
    return list_column(batch.cu_seqlens[batch.row_offsets], values, dtype)


def per_segment(batch: Batch, values: Any, dtype: Any) -> pa.ListArray:
    """Per-segment values as one list per row."""
    return list_column(batch.row_offsets, values, dtype)


def list_column(offsets: np.ndarray, values: Any, dtype: Any) -> pa.ListArray:
    """One list per pair of neighbouring offsets."""
    flat = np.asarray(values).astype(dtype, copy=False)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(flat))
