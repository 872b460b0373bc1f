"""Text files: each is one record with the single field `text`."""

from collections.abc import Iterator

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


def read(source: Source, start: int) -> Iterator[RawBatch]:
    """Batches of whole documents, from document `start + 1` on."""
    first, held = start + 1, 0
    texts: list[bytes] = []
    for number in range(start + 1, len(source.files) + 1):
        text = _document(source, number)
        if text is None:
            if texts:
                yield _batch(source, first, texts)
            reason = f"a document of more than {MAX_RECORD_BYTES:,} bytes; split it into files"
            broken = (source.bad(number, reason),)
            yield RawBatch(source=source, first=number, count=1, payload=b"", broken=broken)
            first, held, texts = number + 1, 0, []
            continue
        texts.append(text)
        held += len(text)
        if held >= BATCH_BYTES or len(texts) == BATCH_RECORDS:
            yield _batch(source, first, texts)
            first, held, texts = number + 1, 0, []
    if texts:
        yield _batch(source, first, texts)


def decode(batch: RawBatch) -> list[Record | BadRecord]:
    """One item per document."""
    out: list[Record | BadRecord] = []
    position = 0
    for number, size in enumerate(batch.parts, batch.first):
        data = batch.payload[position : position + size]
        position += size
        try:
            out.append(Record(number, {"text": data.decode("utf-8-sig")}))
        except UnicodeDecodeError as error:
            reason = f"not UTF-8: byte {error.start} is 0x{data[error.start]:02x}"
            out.append(batch.source.bad(number, reason, data))
    return out


def _document(source: Source, number: int) -> bytes | None:
    """The bytes of one document, None when it is too long to be one record."""
    with reading(source), open_stream(source.path / source.files[number - 1]) as stream:
        pieces: list[bytes] = []
        held = 0
        while chunk := stream.read(BATCH_BYTES):
            pieces.append(chunk)
            held += len(chunk)
            if held > MAX_RECORD_BYTES:
                return None
        return b"".join(pieces)


def _batch(source: Source, first: int, texts: list[bytes]) -> RawBatch:
    parts = tuple(len(text) for text in texts)
    return RawBatch(source=source, first=first, count=len(texts), payload=b"".join(texts), parts=parts)
