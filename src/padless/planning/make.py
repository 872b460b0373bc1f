"""Lengths -> Plan: check, cut, lay out, certify, account."""

from typing import Any

import numpy as np

from padless.lengths import Accounting, Bound, LengthHistogram, as_lengths, lower_bound
from padless.lengths.bounds import SEGMENTS, TOKENS
from padless.planning.certificate import Certificate
from padless.planning.fingerprint import plan_fingerprint
from padless.planning.layout import lay_out
from padless.planning.oversize import Pieces, to_pieces
from padless.planning.result import Plan, length_dtype
from padless.planning.spec import PlanSpec
from padless.planning.strategies import find_strategy


def plan(lengths: Any, capacity: int, **settings: Any) -> Plan:
    """Plan which samples share a row.

    Args:
        lengths: Tokens of each sample, [N]; sample i is number i.
        capacity: Slots per row.
        **settings: Any other field of `PlanSpec`: `strategy`, `seed`, `align`, `max_segments`, `oversize`, ...

    Returns:
        The plan: every sample placed once, or cut or left out by the policy that was named, and counted.

    Raises:
        PadlessError: Lengths or settings that cannot be planned; the message says what to change.

    Example:
        >>> p = plan([5, 5, 5, 5, 5, 5], capacity=16, max_segments=2)
        >>> p.num_rows, p.certificate.bound_by, p.accounting.tail_padding
        (3, 'max-segments', 18)
    """
    return plan_with(lengths, PlanSpec(capacity=capacity, **settings))


def plan_with(lengths: Any, spec: PlanSpec) -> Plan:
    """`plan`, with the settings as one object."""
    cuts = find_strategy(spec.strategy).works_on == "tokens"
    array = as_lengths(lengths)
    pieces = to_pieces(array, spec, cuts=cuts)
    layout = lay_out(pieces, spec)
    order, rows = layout.pieces, layout.row_offsets.size - 1
    sample_ids = order.astype(np.int64, copy=False) if pieces.sample_ids is None else pieces.sample_ids[order]
    starts = layout.starts
    if starts is None:
        starts = np.zeros(order.size, np.int64) if pieces.starts is None else pieces.starts[order]
    placed = layout.placed or LengthHistogram.of(layout.lengths)
    bound = _bound_if_cut(pieces, spec) if cuts else bound_of(placed, spec, layout.proved)
    return Plan(
        row_offsets=layout.row_offsets,
        sample_ids=sample_ids,
        starts=starts,
        lengths=layout.lengths.astype(length_dtype(spec.capacity), copy=False),
        spec=spec,
        certificate=Certificate.of(rows, bound),
        accounting=account(
            samples=array.size,
            rows=rows,
            placed=placed,
            taken=pieces.taken | ({"split_samples": _split_samples(sample_ids, starts)} if cuts else {}),
            widest=int(np.diff(layout.row_offsets).max()),
            spec=spec,
        ),
        fingerprint=plan_fingerprint(array, spec),
    )


def bound_of(placed: LengthHistogram, spec: PlanSpec, proved: int | None) -> Bound:
    """The best bound for whole pieces."""
    return lower_bound(placed, spec.capacity, max_segments=spec.max_segments, align=spec.align, lp=proved)


def account(
    *,
    samples: int,
    rows: int,
    placed: LengthHistogram,
    taken: dict[str, int],
    widest: int,
    spec: PlanSpec,
) -> Accounting:
    """The books of a plan, from its segments' histogram and what the oversize policy did."""
    real = placed.tokens
    aligned = placed.padded(spec.align).tokens * spec.align
    return Accounting(
        samples=samples,
        segments=placed.samples,
        rows=rows,
        capacity=spec.capacity,
        real_tokens=real,
        alignment_padding=aligned - real,
        tail_padding=rows * spec.capacity - aligned,
        **taken,
        sum_squares=placed.sum_squares,
        segments_per_row_max=widest,
    )


def _bound_if_cut(pieces: Pieces, spec: PlanSpec) -> Bound:
    """Where samples may be cut only tokens count, and that every sample is at least one segment."""
    units = -(-pieces.lengths.astype(np.int64) // spec.align)
    bounds = [Bound(rows=-(-int(units.sum()) // (spec.capacity // spec.align)), by=TOKENS)]
    if spec.max_segments is not None:
        bounds.append(Bound(rows=-(-units.size // spec.max_segments), by=SEGMENTS))
    return max(bounds, key=lambda bound: bound.rows)


def _split_samples(sample_ids: np.ndarray, starts: np.ndarray) -> int:
    return int(np.unique(sample_ids[starts > 0]).size)
