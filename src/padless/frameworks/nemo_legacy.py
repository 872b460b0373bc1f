"""NeMo's older packed files: `.npy` with a pickle inside, read without running what the pickle says.

`np.save` of an object array is a pickle, and loading one runs whatever code its author put there. Here the pickle may
name only the few things of numpy that such a file needs, and those names lead to stand-ins that keep what they are
given: no function of numpy, or of anybody, is called on the file's word. A hostile file can still claim much memory.
"""

import ast
import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from padless.corpus.sources.packed_rows import split_rows
from padless.durable import atomic_path
from padless.errors import PadlessError
from padless.frameworks.export.tables import ROW_GROUP

_FIELDS = {"input_ids": pa.int64(), "loss_mask": pa.int8(), "seq_start_id": pa.int64()}
_NUMBERS = {"i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"}


def convert_nemo_npy(path: str | Path, output: str | Path) -> int:
    """Write a packed `.npy` file of NeMo's as the parquet file that Megatron-Bridge, and `padless pack`, read.

    The whole file is held in memory, as its format asks for.

    Args:
        path: An array of dictionaries with `input_ids`, `loss_mask` and `seq_start_id`.
        output: The `.parquet` file; it appears whole or not at all.

    Returns:
        Rows written.

    Raises:
        PadlessError: When the file is no such array, is damaged, or its pickle asks for anything else.
    """
    rows = _read(Path(path))
    with atomic_path(Path(output)) as scratch, pq.ParquetWriter(scratch, pa.schema(_schema())) as writer:
        for first in range(0, len(rows), ROW_GROUP):
            writer.write_batch(_table(Path(path), rows[first : first + ROW_GROUP], first + 1))
    return len(rows)


def _schema() -> list[tuple[str, pa.DataType]]:
    return [(name, pa.list_(kind)) for name, kind in _FIELDS.items()]


def _table(path: Path, rows: list[Any], first_row: int) -> pa.RecordBatch:
    try:
        lists = {name: [_whole_numbers(row[name]) for row in rows] for name in _FIELDS}
        columns = [pa.array(lists[name], pa.list_(kind)) for name, kind in _FIELDS.items()]
        table = pa.RecordBatch.from_arrays(columns, schema=pa.schema(_schema()))
        split_rows(table, first_row)  # refuses rows whose parts do not fit together
    except (KeyError, TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise PadlessError(f"{path}, rows from {first_row} on, are not packed rows of NeMo's: {error}") from error
    return table


def _whole_numbers(values: Any) -> np.ndarray:
    array = values.numbers() if isinstance(values, _Array) else np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iub"):
        raise PadlessError(f"expected whole numbers, got {array.dtype} of shape {array.shape}")
    return array.astype(np.int64)


def _read(path: Path) -> list[Any]:
    try:
        with path.open("rb") as file:
            _check_header(file)
            found = _Unpickler(file).load()
    except PadlessError as error:
        raise PadlessError(f"{path}: {error}") from error
    except OSError as error:
        raise PadlessError(f"cannot read {path}: {error.strerror}") from error
    except Exception as error:
        raise PadlessError(f"{path} is damaged: its pickle cannot be read ({type(error).__name__}: {error})") from error
    rows = found.data if isinstance(found, _Array) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise PadlessError(f"{path} holds no array of dictionaries, which packed rows of NeMo's are")
    return rows


def _check_header(file: BinaryIO) -> None:
    """The `.npy` header of an object array; the pickle begins behind it."""
    magic = file.read(8)
    if magic[:6] != b"\x93NUMPY" or len(magic) < 8 or magic[6] not in (1, 2, 3):
        raise PadlessError("not an .npy file")
    size = int.from_bytes(file.read(2 if magic[6] == 1 else 4), "little")
    if size > 10_000:
        raise PadlessError(f"a header of {size:,} bytes is not one that numpy writes")
    try:
        header = ast.literal_eval(file.read(size).decode("latin-1"))
        kind = header["descr"]
    except (SyntaxError, ValueError, KeyError, TypeError, MemoryError, RecursionError) as error:
        raise PadlessError(f"its header cannot be read ({error})") from error
    if kind != "|O":
        raise PadlessError(f"an array of {kind!r}; packed rows of NeMo's are an array of objects ('|O')")


class _Array:
    """Stands for an array: keeps the state that a pickle hands it."""

    def __init__(self, *_: Any) -> None:
        self.code, self.data = "", None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, _, self.data = state
        self.code = dtype.code
        if not isinstance(shape, tuple) or len(shape) != 1:
            raise PadlessError(f"an array of shape {shape!r}; packed rows hold flat ones")

    def numbers(self) -> np.ndarray:
        """The numbers of an array that lies in a row."""
        if self.code not in _NUMBERS or not isinstance(self.data, bytes):
            raise PadlessError(f"an array of {self.code!r} where whole numbers were expected")
        return np.frombuffer(self.data, f"<{self.code}")


class _Dtype:
    """Stands for a dtype: keeps its name, and takes only little-endian ones."""

    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code = str(code)

    def __setstate__(self, state: Any) -> None:
        if state[1] not in ("<", "|"):
            raise PadlessError(f"numbers in the byte order {state[1]!r}; NeMo writes little-endian ones")


class _NoCall:
    """Stands for `numpy.ndarray`, which a file may name and never needs to call."""

    def __init__(self, *_: Any) -> None:
        raise PadlessError("its pickle makes an array in a way that numpy never writes")


def _scalar(dtype: Any, data: Any) -> int:
    if not isinstance(dtype, _Dtype) or dtype.code not in _NUMBERS or not isinstance(data, bytes):
        raise PadlessError("its pickle holds a scalar that is no whole number")
    return int.from_bytes(data, "little", signed=dtype.code.startswith("i"))


_STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy", "ndarray"): _NoCall,
    ("numpy", "dtype"): _Dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # pickle's own name for it
        """Only the stand-ins have names here."""
        found = _STAND_INS.get((module.replace("numpy._core", "numpy.core"), name))
        if found is None:
            raise PadlessError(
                f"its pickle asks for {module}.{name}, which packed rows never need: the file may run code when numpy "
                "loads it. Nothing was run; do not load it elsewhere"
            )
        return found

    def persistent_load(self, pid: Any) -> Any:
        """Nothing lies outside the file."""
        raise PadlessError(f"its pickle asks for something outside the file ({pid!r})")
