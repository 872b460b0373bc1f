"""HiGHS announces itself on standard output when it is first made, whatever its options; results are printed there."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


def made_silently(make: Callable[[], T]) -> T:
    """Call `make` with the process's standard output pointed at nothing."""
    with _aside():
        return make()


@contextmanager
def _aside() -> Iterator[None]:
    sys.stdout.flush()
    kept = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nothing)
