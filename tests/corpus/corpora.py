"""Small corpora on disk, and everything about an output folder in one value."""

import json
from pathlib import Path


def write_jsonl(path: Path, records: list[dict]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below `folder` by its name; equal values mean byte-identical outputs."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }
