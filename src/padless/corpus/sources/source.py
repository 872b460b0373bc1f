"""What every reader speaks: a source, raw batches of its records, and records that could not be read."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from padless.errors import PadlessError

BATCH_BYTES = 1 << 20
BATCH_RECORDS = 4096
MAX_RECORD_BYTES = 256 << 20

Format = Literal["jsonl", "parquet", "arrow", "text", "indexed"]

_CODECS = {".gz": ("gzip", b"\x1f\x8b"), ".zst": ("zstd", b"\x28\xb5\x2f\xfd")}


class Record(NamedTuple):
    """A record as its file holds it: its 1-based number there, and its fields."""

    number: int
    fields: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class BadRecord:
    """A record that cannot become a sample. Whether that ends the run is for the job to decide.

    Attributes:
        where: File and line, as a person would look for it.
        number: 1-based number of the record in its source.
        reason: What was found, what was expected.
        excerpt: The beginning of what was found.
    """

    where: str
    number: int
    reason: str
    excerpt: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


class Identity(NamedTuple):
    """What a source is, wherever it lies: equal content under an equal name is an equal source."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file of records, or a set of text files with one document each.

    Attributes:
        name: As a person would name it, with `/` between folders; `-` for standard input.
        path: The file, or for text the folder in which `files` lie.
        format: Decides the reader.
        files: Text only: the documents, in order, relative to `path`; record i + 1 is `files[i]`.
    """

    name: str
    path: Path
    format: Format
    files: tuple[str, ...] = ()

    @property
    def paths(self) -> list[Path]:
        """Every file that is read, in order."""
        from padless.corpus.sources.indexed import files_of

        if self.format == "indexed":
            return files_of(self.path)
        return [self.path / name for name in self.files] or [self.path]

    def where(self, number: int) -> str:
        """Where record `number` lies, in the words of an error message."""
        if self.format == "text":
            return (self.path / self.files[number - 1]).as_posix()
        return f"{self.name}:{number}" if self.format == "jsonl" else f"{self.name} row {number}"

    def fingerprint(self) -> Identity:
        """Size and sha256 of the content, read as a stream; of several files, also of their names.

        Raises:
            PadlessError: When a file cannot be read.
        """
        if self.format not in ("text", "indexed"):
            size, digest = _hash_file(self.path)
            return Identity(self.name, size, digest)
        total, whole = 0, hashlib.sha256()
        for name, path in zip(self.files or [path.name for path in self.paths], self.paths, strict=True):
            size, digest = _hash_file(path)
            total += size
            whole.update(f"{name}\0{size}\0{digest}\n".encode())
        return Identity(self.name, total, whole.hexdigest())

    def bad(self, number: int, reason: str, excerpt: bytes | str = b"") -> BadRecord:
        """A `BadRecord` of this source; the excerpt is cut and made printable."""
        text = excerpt[:160].decode("utf-8", "replace") if isinstance(excerpt, bytes) else excerpt[:160]
        return BadRecord(where=self.where(number), number=number, reason=reason, excerpt=text)


@dataclass(frozen=True, kw_only=True)
class RawBatch:
    """Neighbouring records of one source, still as bytes: cheap to hand to another process.

    Attributes:
        source: Where they come from.
        first: Number of the first record (or line) in it.
        count: How many records (or lines) it covers; the next batch starts at `first + count`.
        payload: jsonl: whole lines; parquet and arrow: an Arrow IPC stream; text: documents end to end.
        parts: Text only: bytes of each document.
        broken: Records that the reader itself had to refuse, in order; they are not in `payload`.
    """

    source: Source
    first: int
    count: int
    payload: bytes
    parts: tuple[int, ...] = ()
    broken: tuple[BadRecord, ...] = field(default=())

    def records(self) -> list[Record | BadRecord]:
        """Decode: one item per record, in order. Blank lines are no records."""
        from padless.corpus.sources import documents, lines, tables

        decode = {"jsonl": lines.decode, "text": documents.decode}.get(self.source.format, tables.decode)
        if not self.broken:
            return decode(self)
        return sorted([*decode(self), *self.broken], key=lambda record: record.number)


@contextmanager
def reading(source: Source) -> Iterator[None]:
    """Turn what the system or Arrow says about a file into one clear line."""
    try:
        yield
    except OSError as error:
        raise PadlessError(f"cannot read {source.name}: {error.strerror or error}") from error
    except (pa.ArrowException, UnicodeDecodeError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PadlessError(
            f"cannot read {source.name} as {source.format}: {first_line}; the file is damaged, cut short or of "
            f"another format"
        ) from error


def open_stream(path: Path) -> pa.NativeFile:
    """Open a file for reading in sequence; gzip and zstd are recognised by their first bytes."""
    with path.open("rb") as file:
        head = file.read(4)
    for suffix, (codec, magic) in _CODECS.items():
        if head.startswith(magic):
            return pa.CompressedInputStream(pa.OSFile(str(path), "rb"), codec)
        if path.name.endswith(suffix) and head:
            raise PadlessError(
                f"{path.as_posix()} is not the {codec} file that its name says; it is damaged or misnamed"
            )
    return pa.OSFile(str(path), "rb")


def _hash_file(path: Path) -> tuple[int, str]:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
            return file.tell(), digest.hexdigest()
    except OSError as error:
        raise PadlessError(f"cannot read {path.as_posix()}: {error.strerror or error}") from error
