"""Formats that are tables, one line per row: parquet, Arrow, JSON lines."""

import dataclasses
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from padless.frameworks.nemo import nemo_table
from padless.frameworks.plain import plain_table
from padless.frameworks.trl import trl_table
from padless.rows import Batch

ROW_GROUP = 500  # rows; what Megatron-Bridge writes, and small enough to read one group at a time
SHARD_TOKENS = 1 << 26


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableFormat:
    """A table per batch and a file that takes tables.

    Attributes:
        table: From a batch without padding to a table.
        suffix: Ending of the files.
        open: Makes a writer of a path and a schema; it is closed as a context manager.
    """

    table: Callable[[Batch], pa.Table]
    suffix: str
    open: Callable[[Path, pa.Schema], Any]


class JsonLines:
    """One JSON object per row."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._file = path.open("wb")
        self._encode = msgspec.json.Encoder().encode

    def write_table(self, table: pa.Table) -> None:
        """Append every line of the table."""
        self._file.writelines(self._encode(row) + b"\n" for row in table.to_pylist())

    def __enter__(self) -> "JsonLines":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class Parquet:
    """Parquet in groups of `ROW_GROUP` rows."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(path, schema)
        self._waiting: list[pa.Table] = []

    def write_table(self, table: pa.Table) -> None:
        """Append every line of the table; whole groups go to the file."""
        self._waiting.append(table)
        rows = sum(part.num_rows for part in self._waiting)
        if rows >= ROW_GROUP:
            waiting = pa.concat_tables(self._waiting)
            whole = rows - rows % ROW_GROUP
            self._writer.write_table(waiting.slice(0, whole), row_group_size=ROW_GROUP)
            self._waiting = [waiting.slice(whole)]

    def __enter__(self) -> "Parquet":
        return self

    def __exit__(self, *_: object) -> None:
        rest = [part for part in self._waiting if part.num_rows]
        if rest:
            self._writer.write_table(pa.concat_tables(rest))
        self._writer.close()


def arrow_stream(path: Path, schema: pa.Schema) -> pa.RecordBatchStreamWriter:
    """The Arrow stream format, which `datasets.Dataset.from_file` maps."""
    return pa.ipc.new_stream(str(path), schema)


TABLE_FORMATS = {
    "parquet": TableFormat(table=plain_table, suffix=".parquet", open=Parquet),
    "jsonl": TableFormat(table=plain_table, suffix=".jsonl", open=JsonLines),
    "arrow": TableFormat(table=plain_table, suffix=".arrow", open=arrow_stream),
    "trl": TableFormat(table=trl_table, suffix=".parquet", open=Parquet),
    "nemo": TableFormat(table=nemo_table, suffix=".idx.parquet", open=Parquet),
}


def write_tables(folder: Path, batches: Iterable[Batch], form: TableFormat) -> int:
    """Write batches as numbered files of about `SHARD_TOKENS` tokens.

    Args:
        folder: Where to.
        batches: Numpy batches without padding, in order.
        form: How.

    Returns:
        Lines written.
    """
    lines, room, shards = 0, 0, 0
    writer: Any = None
    with ExitStack() as last_file:
        for batch in batches:
            table = form.table(batch)
            if room <= 0:
                last_file.close()
                path = folder / f"rows-{shards:05d}{form.suffix}"
                writer = last_file.enter_context(form.open(path, table.schema))
                room, shards = SHARD_TOKENS, shards + 1
            writer.write_table(table)
            room -= batch.num_tokens
            lines += table.num_rows
    return lines
