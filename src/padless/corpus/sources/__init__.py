"""Sources: files of records, read as a stream in bounded memory.

`find.py` turns what the user typed into sources; `lines.py`, `tables.py`, `documents.py` and `indexed.py` each
read one kind.
"""

from collections.abc import Iterator, Sequence

from padless.corpus.sources import documents, indexed, lines, tables
from padless.corpus.sources.find import find_sources
from padless.corpus.sources.source import BadRecord, Format, Identity, RawBatch, Record, Source
from padless.errors import PadlessError

__all__ = [
    "BadRecord",
    "Format",
    "Identity",
    "RawBatch",
    "Record",
    "Source",
    "find_sources",
    "first_record",
    "read_raw",
]


def read_raw(source: Source, start_record: int = 0, *, columns: Sequence[str] | None = None) -> Iterator[RawBatch]:
    """The records of a source in order, in batches of about 1 MiB.

    Args:
        source: What to read.
        start_record: How many records (lines, for JSON lines) to pass over; 0 starts at the first.
        columns: Parquet and Arrow: read only these.

    Raises:
        PadlessError: When the file itself cannot be read (missing, damaged, cut short) or holds no record. A record
            that cannot be read comes as a `BadRecord` instead.
    """
    if source.format == "jsonl":
        batches = lines.read(source, start_record)
    elif source.format == "text":
        batches = documents.read(source, start_record)
    elif source.format == "indexed":
        batches = indexed.read(source, start_record)
    else:
        batches = tables.read(source, start_record, None if columns is None else tuple(columns))
    empty = start_record == 0
    for batch in batches:
        empty = False
        yield batch
    if empty:
        raise PadlessError(f"{source.name} holds no record")


def first_record(sources: Sequence[Source]) -> Record:
    """The first record that can be read: it tells the shape of all.

    Raises:
        PadlessError: When no source holds a readable record; the first reason is shown.
    """
    bad: BadRecord | None = None
    for source in sources:
        for batch in read_raw(source):
            for record in batch.records():
                if isinstance(record, Record):
                    return record
                bad = bad or record
    raise PadlessError(f"no record could be read: {bad}" if bad else "the inputs hold no record")
