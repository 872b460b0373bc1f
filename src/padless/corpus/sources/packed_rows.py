"""Tables whose lines are packed rows already: cut back into the samples that they hold.

Read as samples, such rows would train across their boundaries, and NeMo's mask would be one token off:

| where segments lie | whose | loss mask |
|---|---|---|
| `seq_start_id`, the first is 0 | NeMo, Megatron-Bridge | moved left by one inside each segment; put back here |
| `seq_lengths` | TRL, `padless export` | `labels`, unshifted |

A piece of a sample that was split stays a sample of its own: the rows do not say what it was split from.
"""

import numpy as np
import pyarrow as pa

from padless.errors import PadlessError

STARTS, LENGTHS = "seq_start_id", "seq_lengths"
_IDS = "input_ids"


def is_packed(names: list[str]) -> bool:
    """Whether lines with these columns are packed rows."""
    return _IDS in names and (STARTS in names or LENGTHS in names)


def split_rows(table: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
    """One line for each segment, with `input_ids` and `loss_mask` or `labels` where the table has them.

    Args:
        table: Lines that `is_packed`.
        first_row: Number of the first line in its file, for errors.

    Raises:
        PadlessError: When a row's columns differ in length, or its segments do not fill it.

    Example:
        >>> row = {"input_ids": [[5, 6, 7, 8, 9]], "loss_mask": [[1, 1, 0, 1, 0]], "seq_start_id": [[0, 3]]}
        >>> split_rows(pa.record_batch(row), 1).to_pylist()
        [{'input_ids': [5, 6, 7], 'loss_mask': [0, 1, 1]}, {'input_ids': [8, 9], 'loss_mask': [0, 1]}]
    """
    names = table.schema.names
    row_offsets, ids = _column(table, _IDS, first_row)
    offsets = _segments(table, row_offsets, first_row)
    columns = {_IDS: _lists(offsets, ids)}
    for name in ("loss_mask", "labels"):
        if name not in names:
            continue
        at, values = _column(table, name, first_row)
        _refuse((np.diff(at) != np.diff(row_offsets)), first_row, f"{name} and {_IDS} have other lengths")
        columns[name] = _lists(
            offsets, _unmoved(values, offsets) if name == "loss_mask" and STARTS in names else values
        )
    return pa.record_batch(columns)


def _segments(table: pa.RecordBatch, row_offsets: np.ndarray, first_row: int) -> np.ndarray:
    """Offsets of all segments in the flat tokens, int64[S + 1]."""
    names = table.schema.names
    at, values = _column(table, STARTS if STARTS in names else LENGTHS, first_row)
    counts, total = np.diff(at), np.diff(row_offsets)
    _refuse((counts == 0) & (total > 0), first_row, "no segment is named")
    row = np.repeat(np.arange(len(counts)), counts)
    if STARTS in names:
        begins = values
    else:
        ends = np.cumsum(values)
        begins = ends - values - np.repeat(np.concatenate([[0], ends])[at[:-1]], counts)
        sums = np.bincount(row, weights=values, minlength=len(counts)).astype(np.int64)
        _refuse(sums != total, first_row, f"{LENGTHS} do not add up to its tokens")
    is_first = np.zeros(len(row), bool)
    is_first[at[:-1][counts > 0]] = True
    follows = np.concatenate([[False], ~is_first[1:]])
    grows = np.concatenate([[True], begins[1:] > begins[:-1]])
    wrong = np.where(follows, ~grows, begins != 0) | (begins >= total[row])
    _refuse(np.bincount(row, weights=wrong, minlength=len(counts)) > 0, first_row, "segments do not grow from 0")
    return np.append(begins + row_offsets[:-1][row], row_offsets[-1])


def _unmoved(mask: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """`mask[i]` spoke of token i + 1; the last entry of a segment spoke of nothing."""
    out = np.concatenate([[0], mask[:-1]]).astype(mask.dtype)
    out[offsets[:-1]] = 0
    return out


def _column(table: pa.RecordBatch, name: str, first_row: int) -> tuple[np.ndarray, np.ndarray]:
    """Offsets from 0, and the flat whole numbers of a list column."""
    column = table.column(name)
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    flat = column.flatten() if is_list else column
    numbers = pa.types.is_integer(flat.type) or pa.types.is_boolean(flat.type)
    if not is_list or column.null_count or flat.null_count or not numbers:
        raise PadlessError(f"packed rows from row {first_row} on: {name} is {column.type}, expected lists of numbers")
    offsets = column.offsets.to_numpy().astype(np.int64)
    return offsets - offsets[0], flat.to_numpy(zero_copy_only=False).astype(np.int64)


def _lists(offsets: np.ndarray, values: np.ndarray) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))


def _refuse(bad: np.ndarray, first_row: int, why: str) -> None:
    if bad.any():
        raise PadlessError(f"packed row {first_row + int(np.argmax(bad))}: {why}; it was written by something else")
