"""Prompt lengths: cut to the batch, or to one of a few lengths that a compiled model has seen."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from padless.errors import PadlessError
from padless.rows.tensors import host


def prompt_slice(mask: Any, buckets: Sequence[int] | None = None) -> slice:
    """The columns of a padded prompt that a batch needs.

    Args:
        mask: bool[B, L], True on real tokens; padding may lie on either side.
        buckets: Lengths a compiled model may see; the smallest that fits is taken, L itself if none does. None: exactly
            the longest prompt of the batch.

    Returns:
        Columns that hold every real token; cutting to them changes no output, because positions count real tokens.

    Example:
        >>> mask = np.arange(12) < np.array([[5], [3]])
        >>> prompt_slice(mask), prompt_slice(mask, buckets=(4, 8))
        (slice(0, 5, None), slice(0, 8, None))
    """
    real = np.asarray(host(mask)).astype(bool)
    if real.ndim != 2 or real.shape[1] == 0:
        raise PadlessError(f"a prompt mask must be [samples, slots] with at least one slot, not {real.shape}")
    slots = real.shape[1]
    used = np.flatnonzero(real.any(axis=0))
    first, end = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
    width = end - first
    if buckets is not None:
        width = min((b for b in buckets if width <= b <= slots), default=slots)
    first = min(first, slots - width)
    return slice(first, first + width)


def prompt_buckets(lengths: Any, *, batch: int, shapes: int) -> tuple[int, ...]:
    """The lengths to compile for: of all choices of `shapes` lengths, the one with the fewest padded slots.

    A batch of random prompts is as long as its longest one. Every bucket is one more compilation.

    Args:
        lengths: int[N], prompt lengths of the data.
        batch: Samples per batch.
        shapes: How many lengths there may be; the longest prompt is always one.

    Example:
        >>> prompt_buckets([9] * 90 + [12] * 8 + [40] * 2, batch=4, shapes=2)
        (12, 40)
    """
    found = np.asarray(lengths, dtype=np.int64)
    if found.ndim != 1 or len(found) == 0 or (found < 1).any() or batch < 1 or shapes < 1:
        raise PadlessError("give prompt lengths of at least 1, a batch and a number of shapes of at least 1")
    values, counts = np.unique(found, return_counts=True)
    below = (np.cumsum(counts) / len(found)) ** batch  # a batch's longest prompt is at most values[i]
    chance = np.diff(below, prepend=0.0)
    upto = np.concatenate([[0.0], np.cumsum(chance)])
    # best[j]: least expected width of batches up to values[j - 1], whose bucket that is
    best = np.concatenate([[0.0], np.full(len(values), np.inf)])
    cuts = np.zeros((shapes, len(values) + 1), dtype=np.int64)
    for shape in range(shapes):
        cost = best[:, None] + (upto[None, :] - upto[:, None]) * np.concatenate([[0], values])[None, :]
        cost[np.tril_indices(len(best))] = np.inf
        cost[0, 0] = 0.0
        cuts[shape], best = cost.argmin(axis=0), cost.min(axis=0)
    chosen, end = [], len(values)
    for shape in reversed(range(shapes)):
        if end == 0:
            break
        chosen.append(int(values[end - 1]))
        end = int(cuts[shape][end])
    return tuple(sorted(chosen))
