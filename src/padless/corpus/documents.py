"""Which file each text document was: a list of names beside the tokens, one line for each record of a folder."""

import json
from collections.abc import Sequence
from pathlib import Path

from padless.corpus.manifest import FileEntry
from padless.corpus.sources import Source
from padless.durable import write_bytes

__all__ = ["DOCUMENTS", "documents_of", "save_documents"]

DOCUMENTS = "documents-{:05d}.jsonl"  # by the number of the source; one JSON string a line


def save_documents(folder: Path, sources: Sequence[Source]) -> tuple[FileEntry, ...]:
    """Write the names of every source that is a set of text files; other sources number their records themselves."""
    entries = []
    for index, source in enumerate(sources):
        if source.files:
            names = [source.where(number) for number in range(1, len(source.files) + 1)]
            path = folder / DOCUMENTS.format(index)
            write_bytes(path, "".join(json.dumps(name) + "\n" for name in names).encode())
            entries.append(FileEntry.of(path))
    return tuple(entries)


def documents_of(folder: Path, entries: Sequence[FileEntry], source: int) -> list[str] | None:
    """The names of a source's documents, record 1 first; None when the source is one file of records."""
    name = DOCUMENTS.format(source)
    if name not in [entry.name for entry in entries]:
        return None
    return [json.loads(line) for line in (folder / name).read_text("utf-8").splitlines()]
