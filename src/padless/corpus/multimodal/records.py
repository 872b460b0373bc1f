"""Records with images, from the formats that data sets come in."""

import base64
import binascii
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from padless.corpus.multimodal import webdataset
from padless.corpus.multimodal.images import ImageRef
from padless.corpus.sources import BadRecord, Record, find_sources, read_raw
from padless.errors import PadlessError

COLUMNS = ("image", "images")
_DATA_URI = "data:image/"


class MediaRecord(NamedTuple):
    """A record and its images, in order; nothing is decoded.

    Attributes:
        number: 1-based number of the record in its file.
        fields: All fields but those of the images.
        images: The images.
    """

    number: int
    fields: dict[str, Any]
    images: tuple[ImageRef, ...]


def read_media(path: str | Path, *, columns: Sequence[str] = COLUMNS) -> Iterator[MediaRecord | BadRecord]:
    """The records of a file or folder, as a stream.

    JSON lines hold images as paths (relative to the file), data URIs, or `{"bytes": base64}`; Parquet and Arrow as
    binary, or as `{"bytes", "path"}` as Hugging Face `datasets` writes them; a `.tar` is read as a WebDataset shard.

    Args:
        path: `.jsonl`, `.parquet`, `.arrow`, `.tar`, or a folder of one of them.
        columns: Fields that hold an image or a list of them; those a record lacks are passed over.

    Returns:
        Records in order; one that cannot be read comes as a `BadRecord`, for the caller to count.

    Raises:
        PadlessError: When a file itself cannot be read, or no record of it has any of the columns.
    """
    path = Path(path)
    shards = [path] if path.suffix == ".tar" else sorted(path.glob("*.tar")) if path.is_dir() else []
    if shards:
        for shard in shards:
            yield from (_read(each, shard.parent, None) for each in webdataset.read_tar(shard))
        return
    seen = False
    for source in find_sources([path]):
        root = source.path.parent
        for batch in read_raw(source):
            for each in batch.records():
                seen = seen or (isinstance(each, Record) and any(name in each.fields for name in columns))
                yield _read(each, root, columns)
    if not seen:
        raise PadlessError(f"no record of {path} has a field named {', '.join(columns)}; name those that hold images")


def _read(record: Record | BadRecord, root: Path, columns: Sequence[str] | None) -> MediaRecord | BadRecord:
    if isinstance(record, BadRecord):
        return record
    held = [name for name in record.fields if _is_image(name, record.fields[name], columns)]
    try:
        images = [
            image for name in held for image in _images(record.fields[name], root, f"{name} of record {record.number}")
        ]
    except PadlessError as error:
        return BadRecord(where=f"{root.as_posix()} record {record.number}", number=record.number, reason=str(error))
    rest = {name: value for name, value in record.fields.items() if name not in held}
    return MediaRecord(record.number, rest, tuple(images))


def _is_image(name: str, value: Any, columns: Sequence[str] | None) -> bool:
    """By name; in a shard, whose fields are named by their file endings, by what it is."""
    return isinstance(value, bytes | ImageRef) if columns is None else name in columns


def _images(value: Any, root: Path, name: str) -> Iterator[ImageRef]:
    if value is None:
        return
    if isinstance(value, list | tuple):
        for i, each in enumerate(value):
            yield from _images(each, root, f"{name}[{i}]")
        return
    yield _image(value, root, name)


def _image(value: Any, root: Path, name: str) -> ImageRef:
    if isinstance(value, bytes):
        return ImageRef(name=name, data=value)
    if isinstance(value, str):
        if value.startswith(_DATA_URI):
            return ImageRef(name=name, data=_from_base64(value.partition(",")[2], name))
        return ImageRef(name=value, path=root / value)
    if isinstance(value, dict):
        data, path = value.get("bytes"), value.get("path")
        if isinstance(data, str):
            return ImageRef(name=name, data=_from_base64(data, name))
        if isinstance(data, bytes):
            return ImageRef(name=str(path or name), data=data)
        if isinstance(path, str):
            return ImageRef(name=path, path=root / path)
    raise PadlessError(
        f"{name} is a {type(value).__name__}: expected a path, bytes, a data URI, or a mapping with bytes or path"
    )


def _from_base64(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise PadlessError(f"{name} holds text that is no base64: {error}") from error
