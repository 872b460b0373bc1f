"""Lengths -> Plan: check, cut, pack, deal, certify, account."""

from typing import Any

import numpy as np

from padless.lengths import Accounting, LengthHistogram, as_lengths, lower_bound
from padless.planning.certificate import Certificate
from padless.planning.deal import deal
from padless.planning.fingerprint import plan_fingerprint
from padless.planning.oversize import Pieces, to_pieces
from padless.planning.result import Plan, length_dtype
from padless.planning.spec import PlanSpec
from padless.planning.strategies import STRATEGIES


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
    array = as_lengths(lengths)
    strategy = STRATEGIES[spec.strategy]
    pieces = to_pieces(array, spec)
    histogram = LengthHistogram.of(pieces.lengths)
    units = histogram.padded(spec.align)
    room = spec.capacity // spec.align
    patterns = strategy(units.lengths, units.counts, room, spec.max_segments)
    row_offsets, order = deal(patterns, pieces.lengths, spec.align, spec.seed)
    bound = lower_bound(histogram, spec.capacity, max_segments=spec.max_segments, align=spec.align)
    sample_ids = order.astype(np.int64) if pieces.sample_ids is None else pieces.sample_ids[order]
    return Plan(
        row_offsets=row_offsets,
        sample_ids=sample_ids,
        starts=np.zeros(order.size, np.int64) if pieces.starts is None else pieces.starts[order],
        lengths=pieces.lengths[order].astype(length_dtype(spec.capacity), copy=False),
        spec=spec,
        certificate=Certificate.of(row_offsets.size - 1, bound),
        accounting=_account(array.size, row_offsets, histogram, pieces, spec),
        fingerprint=plan_fingerprint(array, spec),
    )


def _account(
    samples: int, row_offsets: np.ndarray, placed: LengthHistogram, pieces: Pieces, spec: PlanSpec
) -> Accounting:
    rows, real = row_offsets.size - 1, placed.tokens
    aligned = placed.padded(spec.align).tokens * spec.align
    return Accounting(
        samples=samples,
        segments=placed.samples,
        rows=rows,
        capacity=spec.capacity,
        real_tokens=real,
        alignment_padding=aligned - real,
        tail_padding=rows * spec.capacity - aligned,
        truncated_samples=pieces.truncated_samples,
        truncated_tokens=pieces.truncated_tokens,
        dropped_samples=pieces.dropped_samples,
        dropped_tokens=pieces.dropped_tokens,
        split_samples=pieces.split_samples,
        sum_squares=placed.sum_squares,
        segments_per_row_max=int(np.diff(row_offsets).max()),
    )
