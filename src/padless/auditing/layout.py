"""Where the samples lie in what the collator made: found by content, never by the collator's own word.

The audit must not trust `cu_seqlens` or positions, since these are what it checks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from padless.auditing.samples import Sample
from padless.errors import PadlessError


class LayoutError(PadlessError):
    """A sample's tokens cannot be found in the row."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """Spans of the samples in the flattened slots.

    Attributes:
        rows: Number of rows R; `length` slots each. A flat `[T]` input is one row.
        length: Slots per row.
        spans: (start, stop) of each sample in `[R * length]`, in the samples' order.
        lost: How many of each sample's last tokens are missing from the row.
    """

    rows: int
    length: int
    spans: tuple[tuple[int, int], ...]
    lost: tuple[int, ...]

    @property
    def slots(self) -> int:
        """Slots of all rows."""
        return self.rows * self.length

    @property
    def segment_ids(self) -> np.ndarray:
        """`[slots]`: 1 + the sample's index, 0 for padding."""
        ids = np.zeros(self.slots, dtype=np.int64)
        for i, (start, stop) in enumerate(self.spans):
            ids[start:stop] = i + 1
        return ids

    @property
    def padding(self) -> np.ndarray:
        """`[slots]` bool: slots that hold no token of any sample."""
        return self.segment_ids == 0

    def same_as(self, other: "Layout") -> bool:
        """Whether the samples lie in the same slots."""
        return (self.rows, self.length, self.spans) == (other.rows, other.length, other.spans)


def locate(input_ids: np.ndarray, samples: Sequence[Sample]) -> Layout:
    """Find every sample in `input_ids` of shape `[T]` or `[R, L]`.

    Long samples are placed first, since a single token may occur elsewhere too. A sample that is there but for its
    last token counts as found with one token lost; the targets check reports it.

    Raises:
        LayoutError: When a sample is not there.
    """
    ids = np.asarray(input_ids)
    if ids.ndim not in (1, 2):
        raise LayoutError(f"the collator's input_ids have shape {ids.shape}; expected [T] or [rows, length]")
    rows, length = (1, ids.shape[0]) if ids.ndim == 1 else ids.shape
    flat = ids.reshape(-1)
    free = np.ones(len(flat), dtype=bool)
    spans: list[tuple[int, int]] = [(0, 0)] * len(samples)
    lost = [0] * len(samples)
    for i in sorted(range(len(samples)), key=lambda i: -len(samples[i]["input_ids"])):
        tokens = np.asarray(samples[i]["input_ids"])
        # One token of two would be no evidence.
        for missing in (0, 1) if len(tokens) > 2 else (0,):
            start = _find(flat, free, tokens[: len(tokens) - missing], length)
            if start is not None:
                break
        if start is None:
            raise LayoutError(
                f"sample {i} ({len(tokens)} tokens) is not in the collated input_ids of shape {tuple(ids.shape)}: "
                "its tokens were changed, cut, or split"
            )
        stop = start + len(tokens) - missing
        spans[i], lost[i] = (start, stop), missing
        free[start:stop] = False
    return Layout(rows=int(rows), length=int(length), spans=tuple(spans), lost=tuple(lost))


def _find(flat: np.ndarray, free: np.ndarray, tokens: np.ndarray, length: int) -> int | None:
    """The first free place in one row where `tokens` stand, or None."""
    n = len(tokens)
    if n == 0 or n > len(flat):
        return None
    windows = np.lib.stride_tricks.sliding_window_view(flat, n)
    usable = np.lib.stride_tricks.sliding_window_view(free, n).all(axis=1)
    starts = np.flatnonzero((windows == tokens).all(axis=1) & usable)
    starts = starts[starts // length == (starts + n - 1) // length]
    return int(starts[0]) if len(starts) else None
