"""One writer per folder: a lock that dies with its process."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from padless.errors import PadlessError

__all__ = ["LOCK", "exclusive"]

LOCK = ".lock"


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the kernel lets go of it when the process ends, however it ends.

    Raises:
        PadlessError: When another process holds it.
    """
    path = folder / LOCK
    descriptor = _take(path)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        path.unlink(missing_ok=True)  # while still held: whoever waits for this file sees that it is gone
        os.close(descriptor)


def _take(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 32).decode() or "another process"
            os.close(descriptor)
            raise PadlessError(
                f"{path.parent} is being written by process {holder}; two writers would mix their files. "
                f"Wait for it, or choose another folder"
            ) from None
        if _is_same_file(descriptor, path):
            return descriptor
        os.close(descriptor)  # the last holder removed it between our open and our lock


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
