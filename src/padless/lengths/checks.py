"""What counts as a length: a whole number of tokens, at least one."""

from typing import Any

import numpy as np

from padless.errors import PadlessError

SHOWN = 5


def first_few(indices: np.ndarray, values: np.ndarray) -> str:
    """`#3: 0, #9: -1 and 12 more`: the offenders an error names."""
    shown = ", ".join(f"#{int(i)}: {values[i]}" for i in indices[:SHOWN])
    more = len(indices) - min(len(indices), SHOWN)
    return shown + (f" and {more:,} more" if more else "")


def as_lengths(values: Any) -> np.ndarray:
    """Check sample lengths and return them as an integer array of one dimension.

    Args:
        values: Any array-like of token counts, `[N]`. Integer arrays are used as they are, without a copy; floats
            are taken when every one of them is a whole number.

    Returns:
        An integer array `[N]`, every value from 1 to 2**63 - 1.

    Raises:
        PadlessError: Nothing given, more than one dimension, NaN, infinite, fractional, zero or negative lengths.

    Example:
        >>> as_lengths([3, 1, 2])
        array([3, 1, 2])
        >>> as_lengths([3, 0])
        Traceback (most recent call last):
            ...
        padless.errors.PadlessError: 1 of 2 lengths are below 1 (#1: 0); every sample needs at least one token: ...
    """
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise PadlessError(f"lengths must be a flat list of whole numbers: {error}") from error
    if array.ndim != 1:
        raise PadlessError(f"lengths must have one dimension [N], not shape {array.shape}")
    if array.size == 0:
        raise PadlessError("no lengths given: there is nothing to plan")
    if array.dtype.kind == "f":
        array = _whole(array)
    if array.dtype.kind == "O":
        array = _from_objects(array)
    if array.dtype.kind not in "iu":
        raise PadlessError(f"lengths must be whole numbers, not {array.dtype}")
    if array.dtype == np.uint64:
        if int(array.max()) > np.iinfo(np.int64).max:
            raise PadlessError(f"the longest length {int(array.max())} does not fit 63 bits")
        array = array.astype(np.int64)
    if int(array.min()) < 1:
        bad = np.flatnonzero(array < 1)
        raise PadlessError(
            f"{len(bad):,} of {array.size:,} lengths are below 1 ({first_few(bad, array)}); every sample needs at "
            "least one token: remove the empty samples first"
        )
    return array


def _whole(array: np.ndarray) -> np.ndarray:
    bad = np.flatnonzero(~np.isfinite(array) | (array != np.floor(array)) | (np.abs(array) >= 2.0**53))
    if bad.size:
        raise PadlessError(f"{len(bad):,} of {array.size:,} lengths are not whole numbers ({first_few(bad, array)})")
    return array.astype(np.int64)


def _from_objects(array: np.ndarray) -> np.ndarray:
    bad = np.array([i for i, v in enumerate(array) if isinstance(v, bool) or not isinstance(v, int)], dtype=int)
    if bad.size:
        raise PadlessError(f"{len(bad):,} of {array.size:,} lengths are not whole numbers ({first_few(bad, array)})")
    try:
        return array.astype(np.int64)
    except OverflowError as error:
        raise PadlessError("a length does not fit 63 bits") from error
