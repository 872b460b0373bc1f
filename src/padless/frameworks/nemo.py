"""NeMo's and Megatron-Bridge's dialect: packed rows with `seq_start_id` and a mask that was moved by the writer.

The reader (Bridge 067f987d, `packing/parquet.py` and the packed data set) takes for each sub-sequence `[b, e)`

    tokens = input_ids[b : e - 1]    labels = input_ids[b + 1 : e]    mask = loss_mask[b : e - 1]

so the row keeps each segment's last token, and `loss_mask[i]` says whether token i + 1 is a target. Traps:

- An unmoved mask trains on the token before every target, without an error.
- A segment of one token becomes an empty sequence there. It has no target, so it is left out here and counted.
- Their capacity counts `length - 1` tokens a segment: a row of ours fits their `pack_size` of the same number.
"""

import numpy as np
import pyarrow as pa

from padless.frameworks.plain import list_column
from padless.frameworks.refusals import refuse_media, refuse_padding, refuse_ranks
from padless.rows import Batch


def nemo_table(batch: Batch) -> pa.Table:
    """The rows of a batch as Megatron-Bridge reads them from parquet.

    Args:
        batch: Numpy arrays without padding.

    Returns:
        Columns `input_ids list<int64>`, `loss_mask list<int8>` (moved left by one inside each segment) and
        `seq_start_id list<int64>` (where segments start in the row; the first is 0). Segments of one token are left
        out, and so are rows of nothing else; see `one_token_segments`.

    Raises:
        PadlessError: When the batch holds padding, or a rule that these rows cannot say.

    Example:
        >>> from padless import collate
        >>> nemo_table(collate([[5, 6, 7], [8, 9]])).to_pylist()
        [{'input_ids': [5, 6, 7, 8, 9], 'loss_mask': [1, 1, 0, 1, 0], 'seq_start_id': [0, 3]}]
    """
    refuse_padding(batch, "NeMo")
    refuse_media(batch, "NeMo")
    refuse_ranks(batch, "NeMo")
    lengths = batch.lengths.astype(np.int64)
    kept = lengths > 1
    row_of_segment = np.repeat(np.arange(batch.num_rows), np.diff(batch.row_offsets))[kept]
    _, segments_per_row = np.unique(row_of_segment, return_counts=True)
    row_offsets = np.concatenate([[0], np.cumsum(segments_per_row)])
    cu_seqlens = np.concatenate([[0], np.cumsum(lengths[kept])])
    row_starts = cu_seqlens[row_offsets]
    kept_tokens = np.repeat(kept, lengths)
    starts = cu_seqlens[:-1] - np.repeat(row_starts[:-1], segments_per_row)
    moved_mask = batch.shifted_labels() != -100
    return pa.table(
        {
            "input_ids": list_column(row_starts, batch.input_ids[kept_tokens], np.int64),
            "loss_mask": list_column(row_starts, moved_mask[kept_tokens], np.int8),
            "seq_start_id": list_column(row_offsets, starts, np.int64),
        }
    )


def one_token_segments(batch: Batch) -> int:
    """How many segments of a batch this dialect leaves out."""
    return int((batch.lengths == 1).sum())
