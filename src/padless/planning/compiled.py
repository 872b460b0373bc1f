"""Loops that numba speeds up when it is installed; the same source runs without it, so not a byte can differ."""

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

# Fewer steps than this take less time in Python than numba takes to be imported.
WORTHWHILE = 1 << 20


def use_numba(steps: int) -> bool:
    """Whether a loop of so many steps is worth compiling, and can be."""
    return steps >= WORTHWHILE and importlib.util.find_spec("numba") is not None


@functools.cache
def jit(kernel: Callable) -> Callable:
    """Compile a kernel of integer arithmetic, keeping the machine code on disk where that is possible."""
    import numba

    try:
        return numba.njit(cache=True, nogil=True)(kernel)
    except RuntimeError:  # no folder to keep it in
        return numba.njit(nogil=True)(kernel)


def run(kernel: Callable, steps: int, *arguments: Any) -> Any:
    """Call a kernel that reads and writes arrays, compiled or in Python.

    Python reads and writes lists four times as fast as arrays, so arrays are turned into lists and back.
    """
    if use_numba(steps):
        return jit(kernel)(*arguments)
    as_lists = [a.tolist() if isinstance(a, np.ndarray) else a for a in arguments]
    result = kernel(*as_lists)
    for array, values in zip(arguments, as_lists, strict=True):
        if isinstance(array, np.ndarray) and array.flags.writeable:
            array[:] = values
    return result
