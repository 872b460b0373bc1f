"""JSON lines: one object per line, plain or compressed."""

from collections.abc import Iterator

import msgspec

from padless.corpus.sources.source import (
    BATCH_BYTES,
    BATCH_RECORDS,
    MAX_RECORD_BYTES,
    BadRecord,
    RawBatch,
    Record,
    Source,
    open_stream,
    reading,
)

_BOM = b"\xef\xbb\xbf"
_KINDS = {list: "a list", str: "a string", int: "a number", float: "a number", bool: "true or false"}


def read(source: Source, start: int) -> Iterator[RawBatch]:
    """Batches of whole lines, from line `start + 1` on."""
    number = 1
    for block in _blocks(source):
        if isinstance(block, int):
            if number > start:
                reason = f"a line of {block:,} bytes; a record has at most {MAX_RECORD_BYTES:,}"
                yield RawBatch(source=source, first=number, count=1, payload=b"", broken=(source.bad(number, reason),))
            number += 1
            continue
        count = block.count(b"\n") + (not block.endswith(b"\n"))
        if number + count - 1 > start:
            skip = max(start + 1 - number, 0)
            yield from _batches(source, number + skip, _after_lines(block, skip))
        number += count


def decode(batch: RawBatch) -> list[Record | BadRecord]:
    """One item per line that is not blank."""
    decoder = msgspec.json.Decoder()
    hint = "; a .json file is read as one object per line" if batch.source.path.suffix == ".json" else ""
    out: list[Record | BadRecord] = []
    for number, line in enumerate(batch.payload.split(b"\n"), batch.first):
        if number == 1 and line.startswith(_BOM):
            line = line[3:]  # noqa: PLW2901 - editors on Windows write a byte order mark
        try:
            fields = decoder.decode(line)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            if line and not line.isspace():
                out.append(batch.source.bad(number, f"not valid JSON: {_say(error)}{hint}", line))
            continue
        if isinstance(fields, dict):
            out.append(Record(number, fields))
        else:
            kind = _KINDS.get(type(fields), "null")
            out.append(batch.source.bad(number, f"expected a JSON object per line, found {kind}", line))
    return out


def _say(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _blocks(source: Source) -> Iterator[bytes | int]:
    """Pieces of about `BATCH_BYTES` that end with a line's end (but the last), or the size of a line too long."""
    with reading(source), open_stream(source.path) as stream:
        pending: list[bytes] = []
        held = 0
        while chunk := stream.read(BATCH_BYTES):
            cut = chunk.rfind(b"\n") + 1
            if not cut:
                held += len(chunk)
                pending = [*pending, chunk] if held <= MAX_RECORD_BYTES else []
                continue
            end = chunk.find(b"\n") + 1
            if held + end - 1 > MAX_RECORD_BYTES:
                yield held + end - 1
                if cut > end:
                    yield chunk[end:cut]
            else:
                yield b"".join([*pending, chunk[:cut]])
            pending, held = [chunk[cut:]], len(chunk) - cut
        if held > MAX_RECORD_BYTES:
            yield held
        elif held:
            yield b"".join(pending)


def _batches(source: Source, first: int, block: bytes) -> Iterator[RawBatch]:
    """Cut a block so that no batch has more than `BATCH_RECORDS` lines."""
    while block:
        rest = _after_lines(block, BATCH_RECORDS)
        head = block[: len(block) - len(rest)]
        count = head.count(b"\n") + (not head.endswith(b"\n"))
        yield RawBatch(source=source, first=first, count=count, payload=head.removesuffix(b"\n"))
        first, block = first + count, rest


def _after_lines(block: bytes, lines: int) -> bytes:
    """What follows the first `lines` lines of `block`."""
    position = 0
    for _ in range(lines):
        position = block.find(b"\n", position) + 1
        if not position:
            return b""
    return block[position:]
