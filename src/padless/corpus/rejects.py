"""Records that were left out, each with its reason, in a file that a resumed run continues exactly."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from padless.corpus.encoded import Position
from padless.corpus.manifest import FileEntry
from padless.corpus.sources import BadRecord
from padless.durable import write_bytes

__all__ = ["REJECTED", "Rejects"]

REJECTED = "rejected.jsonl"


class Rejects:
    """`rejected.jsonl` in the making: one line per record, in the order of the inputs.

    Args:
        folder: The store's folder.
        after: The last record of the last whole shard; lines beyond it will be written again, so they are cut off.
            None starts afresh.
    """

    def __init__(self, folder: Path, after: Position | None) -> None:
        self.path = folder / f"{REJECTED}.part"
        self.count = 0
        kept = b"" if after is None else self._kept(after)
        write_bytes(self.path, kept)  # atomically: a kill right here must not lose what an earlier run wrote down
        self._file = self.path.open("ab")

    def add(self, source: int, records: Iterable[BadRecord]) -> None:
        """Append records of one source."""
        for record in records:
            line = {
                "source": source,
                "record": record.number,
                "where": record.where,
                "reason": record.reason,
                "excerpt": record.excerpt,
            }
            self._file.write(json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
            self.count += 1

    def sync(self) -> None:
        """Make what was added outlive a crash; called before a shard that lies behind it appears."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self) -> FileEntry | None:
        """Put the file in its place and describe it; when nothing was rejected there is none."""
        self.sync()
        self.close()
        if not self.count:
            self.path.unlink()
            return None
        place = self.path.with_name(REJECTED)
        self.path.replace(place)
        return FileEntry.of(place)

    def close(self) -> None:
        """Let go of the file; it stays for a later run."""
        self._file.close()

    def _kept(self, after: Position) -> bytes:
        # A run that was killed at its very end has put the file in its place already.
        found = [path for path in (self.path, self.path.with_name(REJECTED)) if path.exists()]
        lines = found[0].read_bytes().splitlines(keepends=True) if found else []
        kept = [line for line in lines if line.endswith(b"\n") and _position(line) <= after]
        self.count = len(kept)
        return b"".join(kept)


def _position(line: bytes) -> Position:
    entry = json.loads(line)
    return Position(entry["source"], entry["record"])
