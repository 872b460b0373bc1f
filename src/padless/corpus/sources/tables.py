"""Parquet, and Arrow IPC in both of its forms (file and stream): each row is one record.

Tables of packed rows are cut back into samples first, and records are numbered by them; see `packed_rows.py`.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from padless.corpus.sources.packed_rows import LENGTHS, STARTS, is_packed, split_rows
from padless.corpus.sources.source import (
    BATCH_BYTES,
    BATCH_RECORDS,
    BadRecord,
    RawBatch,
    Record,
    Source,
    reading,
)
from padless.errors import PadlessError

_FILE_MAGIC = b"ARROW1"
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def read(source: Source, start: int, columns: tuple[str, ...] | None) -> Iterator[RawBatch]:
    """Batches of rows, from row `start + 1` on, with only `columns` when they are named."""
    open_table = _parquet if source.format == "parquet" else _arrow
    wanted = None if columns is None else (*columns, STARTS, LENGTHS)
    number = row = 1
    with reading(source):
        for read_table in open_table(source, wanted):
            table, row = _samples(source, read_table, row), row + read_table.num_rows
            skip = min(max(start + 1 - number, 0), table.num_rows)
            yield from _pieces(source, number + skip, table.slice(skip))
            number += table.num_rows


def decode(batch: RawBatch) -> list[Record | BadRecord]:
    """One item per row. Lists of whole numbers come as numpy arrays, all else as Python's own types."""
    table = pa.ipc.open_stream(batch.payload).read_next_batch()
    names = table.schema.names
    columns = [_values(table.column(i)) for i in range(table.num_columns)]
    rows = zip(*columns, strict=True) if columns else ()
    return [Record(number, dict(zip(names, row, strict=True))) for number, row in enumerate(rows, batch.first)]


def _samples(source: Source, table: pa.RecordBatch, row: int) -> pa.RecordBatch:
    if not is_packed(table.schema.names):
        return table
    table.validate(full=True)
    try:
        return split_rows(table, row)
    except PadlessError as error:
        raise PadlessError(f"{source.name}: {error}") from error


def _values(column: pa.Array) -> list[Any]:
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if is_list and pa.types.is_integer(kind.value_type) and not column.null_count:
        flat = column.flatten()
        if not flat.null_count:
            numbers = flat.to_numpy(zero_copy_only=False)
            offsets = (column.offsets.to_numpy() - column.offsets[0].as_py()).tolist()
            return [numbers[first:end] for first, end in itertools.pairwise(offsets)]
    try:
        return column.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException):
        return [None] * len(column)  # e.g. a time that Python cannot hold: no text, no tokens


def _pieces(source: Source, first: int, table: pa.RecordBatch) -> Iterator[RawBatch]:
    """Cut a record batch by rows so that a piece stays near `BATCH_BYTES`; each piece carries only its own bytes."""
    if not table.num_rows:
        return
    # An IPC file is not trusted: a wrong offset would read beyond its buffer, a wrong byte would not be text.
    table.validate(full=True)
    per_row = max(table.nbytes // table.num_rows, 1)
    step = min(max(BATCH_BYTES // per_row, 1), BATCH_RECORDS)
    for at in range(0, table.num_rows, step):
        piece = table.slice(at, step)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, piece.schema) as writer:
            writer.write_batch(piece)
        payload = sink.getvalue().to_pybytes()
        yield RawBatch(source=source, first=first + at, count=piece.num_rows, payload=payload)


def _parquet(source: Source, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(source.path, page_checksum_verification=True) as file:
        names = file.schema_arrow.names
        _check_names(source, names)
        wanted = [name for name in names if columns is None or name in columns]
        size = sum(file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups))
        per_row = max(size // max(file.metadata.num_rows, 1), 1)
        step = min(max(BATCH_BYTES // per_row, 1), BATCH_RECORDS)
        rows = 0
        for table in file.iter_batches(batch_size=step, columns=wanted, use_threads=False):
            rows += table.num_rows
            yield table
        if rows != file.metadata.num_rows:
            raise PadlessError(f"{source.name} promises {file.metadata.num_rows} rows and holds {rows}: it is damaged")


def _arrow(source: Source, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(source.path), "rb") as file:
        if file.read(len(_FILE_MAGIC)) == _FILE_MAGIC:
            reader = pa.ipc.open_file(file)
            tables = (reader.get_batch(i) for i in range(reader.num_record_batches))
        else:
            _check_end(source.path, source.name)
            file.seek(0)
            reader = tables = pa.ipc.open_stream(file)
        _check_names(source, reader.schema.names)
        wanted = [name for name in reader.schema.names if columns is None or name in columns]
        for table in tables:
            yield table.select(wanted)


def _check_end(path: Path, name: str) -> None:
    """A stream that was cut between two batches reads without an error, so its end mark is looked for."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - len(_END_OF_STREAM), 0))
        if file.read() != _END_OF_STREAM:
            raise PadlessError(
                f"{name} is not a whole Arrow IPC stream: its end mark is missing, so it was cut short, is still being "
                f"written, or has another format"
            )


def _check_names(source: Source, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PadlessError(f"{source.name} has more than one column named {', '.join(twice)}; rename one")
