"""Megatron's `.idx` / `.bin` pair, written as a stream.

A segment is a *sequence* of the index and a row is a *document*, so the index holds both kinds of boundary. A second
pair beside it holds one byte per token: 1 where the token is a target. That mask is not shifted; a reader that trains
on the next token moves it left by one inside each sequence.

`IndexedDataset` gives back exactly what was written. Megatron's `GPTDataset` reads sequences too, but cuts samples of
its own out of them: the rows of the plan are then lost, the boundaries of samples are not.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from padless.frameworks.refusals import refuse_padding, refuse_ranks
from padless.lengths.indexed import DTYPE_CODES, HEADER, MAGIC, VERSION
from padless.planning import Plan
from padless.rows import Batch

TOKENS, MASK = "rows", "rows_loss_mask"


def megatron_dtype(stored: np.dtype) -> np.dtype:
    """The type that Megatron keeps ids of this store in; it knows no uint32.

    Example:
        >>> megatron_dtype(np.dtype("uint8")), megatron_dtype(np.dtype("uint32"))
        (dtype('uint16'), dtype('int32'))
    """
    return np.dtype("uint16") if stored.itemsize <= 2 else np.dtype("int32")


def write_index(path: Path, dtype: np.dtype, lengths: np.ndarray, documents: np.ndarray) -> None:
    """Write an `.idx` file.

    Args:
        path: Where to.
        dtype: Type of the tokens in the `.bin` file.
        lengths: `int[S]`, tokens of each sequence.
        documents: `int[D + 1]`, the first sequence of each document, then S.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    pointers = (ends - lengths) * dtype.itemsize
    with path.open("wb") as file:
        file.write(HEADER.pack(MAGIC, VERSION, DTYPE_CODES[dtype.name], len(lengths), len(documents)))
        file.write(np.asarray(lengths, "<i4").tobytes())
        file.write(np.asarray(pointers, "<i8").tobytes())
        file.write(np.asarray(documents, "<i8").tobytes())


def write_indexed(folder: Path, batches: Iterable[Batch], plan: Plan, stored: np.dtype) -> int:
    """Write all rows of a plan as two pairs, `rows` and `rows_loss_mask`.

    Args:
        folder: Where to.
        batches: Numpy batches without padding, all rows of the plan in order.
        plan: Their boundaries.
        stored: Type of the store's tokens.

    Returns:
        Documents written.
    """
    dtype = megatron_dtype(stored)
    for name, kind in ((TOKENS, dtype), (MASK, np.dtype("uint8"))):
        write_index(folder / f"{name}.idx", kind, plan.lengths, plan.row_offsets)
    with (folder / f"{TOKENS}.bin").open("wb") as tokens, (folder / f"{MASK}.bin").open("wb") as mask:
        for batch in batches:
            refuse_padding(batch, "Megatron")
            refuse_ranks(batch, "Megatron")
            tokens.write(batch.input_ids.astype(dtype.newbyteorder("<")).tobytes())
            mask.write((batch.labels != -100).astype(np.uint8).tobytes())
    return plan.num_rows
