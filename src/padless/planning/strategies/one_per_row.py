"""One sample per row: what training without packing does, as a plan."""

import numpy as np

from padless.planning.patterns import Patterns


def one_per_row(lengths: np.ndarray, counts: np.ndarray, capacity: int, max_segments: int | None) -> Patterns:  # noqa: ARG001
    """Every sample alone in its row; the baseline that the others are measured against."""
    return Patterns.of((count, [(length, 1)]) for length, count in zip(lengths.tolist(), counts.tolist(), strict=True))
