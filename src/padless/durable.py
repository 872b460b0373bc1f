"""Files that are either whole or absent: written beside their place, synced, renamed, and hashed."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["UNFINISHED", "atomic_path", "remove_unfinished", "sha256_of", "write_bytes"]

UNFINISHED = ".unfinished-"  # starts the name of a file that is still being written


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a path to write to; when the block ends well, it is synced and takes its place at `path`.

    A crash at any moment leaves either the old state or the new one, and at most a `.unfinished-*` file beside it.
    """
    scratch = path.with_name(f"{UNFINISHED}{os.getpid()}-{path.name}")
    try:
        yield scratch
        _sync(scratch)
        scratch.replace(path)
        _sync(path.parent)  # the rename itself must survive a power cut
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file atomically."""
    with atomic_path(path) as scratch:
        scratch.write_bytes(data)


def remove_unfinished(folder: Path) -> None:
    """Forget what a killed process was still writing."""
    for leftover in folder.glob(f"{UNFINISHED}*"):
        leftover.unlink()


def sha256_of(path: Path) -> str:
    """The sha256 of a file's bytes, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
