"""TRL's dialect: a data set of packed rows with a `seq_lengths` column, as `trl.pack_dataset` makes it.

Read by TRL 1.16's `DataCollatorForLanguageModeling(padding_free=True)`, which makes positions, `cu_seq_lens` and
`seq_idx` of `seq_lengths`. Traps on that side:

- Without `seq_lengths` it takes the whole row for one document; without `padding_free=True` it ignores the column.
- Its `pad_to_multiple_of` gives every pad position 0, so each pad becomes a document of one token.
- It masks every label at position 0; ours are -100 there already.
- `packing=True` would pack packed rows again: leave it False.
"""

import numpy as np
import pyarrow as pa

from padless.frameworks.plain import per_segment, per_token
from padless.frameworks.refusals import refuse_media, refuse_padding, refuse_ranks
from padless.rows import Batch


def trl_table(batch: Batch) -> pa.Table:
    """The rows of a batch as TRL's `SFTTrainer` takes them with `SFTConfig(padding_free=True, packing=False)`.

    Args:
        batch: Numpy arrays without padding.

    Returns:
        Columns `input_ids list<int32>`, `labels list<int32>` (unshifted, -100 where there is no target) and
        `seq_lengths list<int32>` (one per segment).

    Raises:
        PadlessError: When the batch holds padding, or a rule that these rows cannot say.

    Example:
        >>> from padless import collate
        >>> trl_table(collate([[5, 6, 7], [8, 9]])).to_pylist()
        [{'input_ids': [5, 6, 7, 8, 9], 'labels': [-100, 6, 7, -100, 9], 'seq_lengths': [3, 2]}]
    """
    refuse_padding(batch, "TRL")
    refuse_media(batch, "TRL")
    refuse_ranks(batch, "TRL")
    return pa.table(
        {
            "input_ids": per_token(batch, batch.input_ids, np.int32),
            "labels": per_token(batch, batch.labels, np.int32),
            "seq_lengths": per_segment(batch, batch.lengths, np.int32),
        }
    )
