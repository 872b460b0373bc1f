"""Pieces -> rows: run a strategy on the whole set or on windows of it, and give every segment its sample."""

from dataclasses import dataclass

import numpy as np

from padless.lengths import LengthHistogram
from padless.planning.deal import deal
from padless.planning.oversize import Pieces
from padless.planning.shuffle import shuffled
from padless.planning.spec import PlanSpec
from padless.planning.strategies import find_strategy

WINDOW_ORDER = 2  # stream of the seed


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """Rows of segments.

    Attributes:
        row_offsets: int64[R + 1].
        pieces: int[S], which piece each segment is, or is cut from.
        lengths: int[S], tokens of each segment.
        starts: None where segments are whole pieces; else int64[S], where in its piece each segment starts.
        placed: The histogram of those lengths, where it is known already.
        proved: Rows that a linear program proves to be needed, or None.
    """

    row_offsets: np.ndarray
    pieces: np.ndarray
    lengths: np.ndarray
    starts: np.ndarray | None = None
    placed: LengthHistogram | None = None
    proved: int | None = None


def lay_out(pieces: Pieces, spec: PlanSpec) -> Layout:
    """Rows of all pieces: at once, or `spec.window` shuffled ones at a time."""
    lengths, window = pieces.lengths, spec.window
    if window is None or window >= lengths.size:
        return _lay_out(lengths, spec)
    order = shuffled(lengths.size, spec.seed, WINDOW_ORDER)
    parts = [order[at : at + window] for at in range(0, lengths.size, window)]
    return _joined([_lay_out(lengths[part], spec) for part in parts], parts)


def _lay_out(lengths: np.ndarray, spec: PlanSpec) -> Layout:
    strategy, room = find_strategy(spec.strategy), spec.capacity // spec.align
    if strategy.works_on == "tokens":
        offsets, order, starts, sizes = strategy.pack(lengths, spec)
        return Layout(row_offsets=offsets, pieces=order, lengths=sizes, starts=starts)
    if strategy.works_on == "order":
        units = lengths if spec.align == 1 else -(-lengths // spec.align)
        offsets, order = strategy.pack(units, room, spec)
        return Layout(row_offsets=offsets, pieces=order, lengths=lengths[order])
    placed = LengthHistogram.of(lengths)
    units = placed.padded(spec.align)
    patterns, proved = strategy.pack(units.lengths, units.counts, room, spec)
    offsets, order, sizes = deal(patterns, lengths, spec.align, spec.seed)
    return Layout(row_offsets=offsets, pieces=order, lengths=sizes, placed=placed, proved=proved)


def _joined(layouts: list[Layout], parts: list[np.ndarray]) -> Layout:
    """Windows one after the other; what is proved of one window says nothing of the whole."""
    widths = np.concatenate([np.diff(layout.row_offsets) for layout in layouts])
    starts = [layout.starts for layout in layouts if layout.starts is not None]
    return Layout(
        row_offsets=np.concatenate([[0], np.cumsum(widths)]),
        pieces=np.concatenate([part[layout.pieces] for layout, part in zip(layouts, parts, strict=True)]),
        lengths=np.concatenate([layout.lengths for layout in layouts]),
        starts=np.concatenate(starts) if starts else None,
    )
