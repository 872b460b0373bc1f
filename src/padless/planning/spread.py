"""How non-random the rows of a plan are: what packing does to batches besides filling them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from padless.planning.outline import Outline
from padless.planning.result import Plan
from padless.planning.shuffle import shuffled
from padless.planning.strategies.next_fit import next_fit

_STREAM = 3


@dataclass(frozen=True, kw_only=True)
class PerRow:
    """The distribution of a number over rows.

    Attributes:
        mean: Its mean.
        std: Its standard deviation.
        least: Its smallest value.
        most: Its largest value.
    """

    mean: float
    std: float
    least: int
    most: int


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How far a plan is from rows filled in a random order.

    Attributes:
        segments: Segments per row.
        targets: Targets per row where every token but a segment's first is one.
        random_segments: Segments per row of the same samples, shuffled and filled one after the other; None where
            there are no ids.
        random_targets: Their targets per row.
        moved: Mean distance of a sample from its place in the data, over that of a random order (a third of the
            samples): 1 is as mixed as a shuffle, 0 is the data's own order. None where there are no ids.
    """

    segments: PerRow
    targets: PerRow
    random_segments: PerRow | None = None
    random_targets: PerRow | None = None
    moved: float | None = None


def spread(planned: Plan | Outline) -> Spread:
    """Measure a plan, or an outline as far as it goes.

    Example:
        >>> from padless.planning import plan
        >>> found = spread(plan([3, 1, 2, 2], capacity=4))
        >>> found.segments
        PerRow(mean=2.0, std=0.0, least=2, most=2)
        >>> found.targets.mean
        2.0
    """
    if isinstance(planned, Outline):
        patterns = planned.patterns
        tokens = patterns.used * planned.spec.align - _padding(planned)
        widths, counts = patterns.widths, patterns.counts
        return Spread(segments=_per_row(widths, counts), targets=_per_row(tokens - widths, counts))
    widths = np.diff(planned.row_offsets)
    order = shuffled(planned.num_segments, 0, _STREAM)
    sizes = planned.lengths[order].astype(np.int64)
    align = planned.spec.align
    offsets, _ = next_fit(-(-sizes // align), planned.capacity // align, planned.spec.max_segments)
    places = np.arange(planned.num_segments)
    distance = float(np.abs(planned.sample_ids * (planned.num_segments / planned.accounting.samples) - places).mean())
    return Spread(
        segments=_per_row(widths),
        targets=_per_row(_sums(planned.lengths.astype(np.int64), planned.row_offsets) - widths),
        random_segments=_per_row(np.diff(offsets)),
        random_targets=_per_row(_sums(sizes, offsets) - np.diff(offsets)),
        moved=distance / (planned.num_segments / 3),
    )


def _padding(planned: Outline) -> Any:
    """Alignment padding per row: on average, where units hide which sample is how long."""
    return planned.accounting.alignment_padding / planned.patterns.rows


def _sums(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    return np.add.reduceat(values, offsets[:-1])


def _per_row(values: np.ndarray, counts: np.ndarray | None = None) -> PerRow:
    mean = float(np.average(values, weights=counts))
    variance = float(np.average((values - mean) ** 2, weights=counts))
    return PerRow(mean=mean, std=variance**0.5, least=int(values.min()), most=int(values.max()))
