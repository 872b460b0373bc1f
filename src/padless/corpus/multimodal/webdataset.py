"""WebDataset shards: a tar whose neighbouring members with one key are one record, read as a stream."""

import json
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from padless.corpus.sources import BadRecord, Record
from padless.errors import PadlessError

# What the standard library raises on a damaged tar: of its own, of gzip's, and of code that did not expect it.
_DAMAGED = (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, TypeError, IndexError, OverflowError)
_TEXT = ("txt", "text", "caption", "cls", "id")


class _Member(tarfile.TarInfo):
    """A member whose header must be one.

    `tarfile` takes a damaged or missing header for the end of the archive, and would lose all that follows without a
    word. The true end is a block of zeros.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Member":
        ends = len(buf) == tarfile.BLOCKSIZE and not any(buf)
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if ends:
                raise
            raise tarfile.ReadError(f"{error} where a member or the mark of the end must stand") from error


def read_tar(path: Path) -> Iterator[Record | BadRecord]:
    """The records of a shard, plain or gzip, in order.

    A member `a/b.left.png` belongs to the record with the key `a/b` and is its field `left.png`. Fields ending in
    `json` are parsed, those in `txt`, `cls` and the like are text, all others are bytes; `__key__` holds the key.

    Raises:
        PadlessError: When the file is missing, damaged or no tar, or a key comes again after another.
    """
    number, key, fields = 0, None, {}
    done: set[str] = set()
    try:
        with tarfile.open(path, mode=_mode(path), tarinfo=_Member) as shard:
            for member in shard:
                if not member.isfile() or Path(member.name).name.startswith("."):
                    continue
                own, ending = _split(member.name)
                if own != key:
                    if key is not None:
                        number += 1
                        yield _record(path, number, key, fields)
                        done.add(key)
                    if own in done:
                        raise PadlessError(
                            f"{path}: the key {own!r} comes again after others; the members of one record must stand "
                            "together, or it would be read as two"
                        )
                    key, fields = own, {}
                if ending in fields:
                    raise PadlessError(f"{path}: the record {own!r} has two members that end in {ending!r}")
                held = shard.extractfile(member)
                fields[ending] = held.read() if held is not None else b""
    except PadlessError:
        raise
    except _DAMAGED as error:
        raise PadlessError(f"cannot read {path} as a tar: {error}; it is missing, damaged or cut short") from error
    if key is None:
        raise PadlessError(f"{path} holds no record")
    yield _record(path, number + 1, key, fields)


def _mode(path: Path) -> Literal["r|", "r|gz"]:
    with path.open("rb") as file:
        return "r|gz" if file.read(2) == b"\x1f\x8b" else "r|"


def _split(name: str) -> tuple[str, str]:
    """The key up to the first dot of the file's own name, and what follows it."""
    folder, slash, file = name.rpartition("/")
    stem, _, ending = file.partition(".")
    return f"{folder}{slash}{stem}", ending.lower()


def _record(path: Path, number: int, key: str, fields: dict[str, bytes]) -> Record | BadRecord:
    read: dict[str, Any] = {"__key__": key}
    for ending, data in fields.items():
        last = ending.rpartition(".")[2]
        try:
            if last == "json":
                read[ending] = json.loads(data)
            else:
                read[ending] = data.decode() if last in _TEXT else data
        except (ValueError, RecursionError) as error:
            reason = f"its member .{ending} cannot be read: {str(error)[:120]}"
            return BadRecord(where=f"{path} record {key!r}", number=number, reason=reason)
    return Record(number, read)
