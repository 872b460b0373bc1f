"""Lengths from a file: `.npy`, a histogram's `.npz`, JSON, a column of CSV or Parquet, Megatron's `.idx`."""

import json
from pathlib import Path

import numpy as np

from padless.errors import PadlessError
from padless.lengths.checks import as_lengths
from padless.lengths.histogram import LengthHistogram
from padless.lengths.indexed import read_index

KINDS = ".npy, .npz (a saved histogram), .json, .csv, .parquet, .idx (Megatron)"


def read_lengths(path: str | Path, column: str | None = None) -> np.ndarray | LengthHistogram:
    """Read lengths, or a histogram of them.

    JSON may be a list of lengths, `{"lengths": [...]}`, `{"lengths": [...], "counts": [...]}` with one count per
    length, or `{"counts": [...]}` where entry i counts the samples of length i + 1.

    Args:
        path: The file.
        column: Which column of a table, or which entry of a JSON object; needed where there are several.

    Raises:
        PadlessError: The file is missing, of another kind, or holds what is not lengths.
    """
    path = Path(path)
    if not path.is_file():
        raise PadlessError(f"{path} is not a file; lengths come from {KINDS}, or a store's folder")
    readers = {".npy": _npy, ".npz": _npz, ".json": _json, ".csv": _table, ".parquet": _table, ".idx": _idx}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise PadlessError(f"{path} is of no kind that lengths come from: {KINDS}, or a store's folder")
    try:
        return reader(path, column)
    except PadlessError as error:
        raise PadlessError(f"{path}: {error}") from error


def _npy(path: Path, _column: str | None) -> np.ndarray:
    try:
        return as_lengths(np.load(path, allow_pickle=False))
    except PadlessError:
        raise
    except (ValueError, EOFError, OSError) as error:
        raise PadlessError(f"not an array that can be read without pickle ({error})") from error


def _idx(path: Path, _column: str | None) -> np.ndarray:
    return as_lengths(read_index(path).lengths)


def _npz(path: Path, _column: str | None) -> LengthHistogram:
    return LengthHistogram.load(path)


def _json(path: Path, column: str | None) -> np.ndarray | LengthHistogram:
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise PadlessError(f"not JSON ({error})") from error
    if isinstance(found, dict) and column is not None:
        if column not in found:
            raise PadlessError(f"no entry {column!r}; there are {', '.join(map(repr, found))}")
        found = found[column]
    if isinstance(found, list):
        return as_lengths(found)
    if isinstance(found, dict) and "counts" in found:
        counts = np.asarray(found["counts"])
        if "lengths" not in found:
            return LengthHistogram.from_counts(counts)
        return LengthHistogram(lengths=as_lengths(found["lengths"]), counts=counts)
    if isinstance(found, dict) and "lengths" in found:
        return as_lengths(found["lengths"])
    names = f"; choose an entry with --column: {', '.join(map(repr, found))}" if isinstance(found, dict) else ""
    raise PadlessError(f"no list of lengths, and neither 'lengths' nor 'counts'{names}")


def _table(path: Path, column: str | None) -> np.ndarray:
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    try:
        if path.suffix.lower() == ".csv":
            table = pyarrow.csv.read_csv(path)
        else:
            table = pyarrow.parquet.read_table(path, columns=None if column is None else [column])
    except (pyarrow.ArrowException, OSError) as error:
        raise PadlessError(f"not a table that can be read ({error})") from error
    names = table.column_names
    if column is None:
        if len(names) != 1:
            raise PadlessError(f"say which column holds the lengths: {', '.join(names)}")
        column = names[0]
    if column not in names:
        raise PadlessError(f"no column {column!r}" + (f"; there are {', '.join(names)}" if names else ""))
    values = table[column]
    if values.null_count:
        raise PadlessError(f"{values.null_count:,} of {len(values):,} lengths in column {column!r} are missing")
    return as_lengths(values.to_numpy())
