"""Rows of a histogram: a plan without ids, for corpora of any size."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from padless.errors import PadlessError
from padless.lengths import Accounting, LengthHistogram
from padless.planning.certificate import Certificate
from padless.planning.make import account, bound_of
from padless.planning.oversize import row_of
from padless.planning.patterns import Patterns
from padless.planning.spec import PlanSpec
from padless.planning.strategies import find_strategy


@dataclass(frozen=True, kw_only=True, eq=False)
class Outline:
    """What a plan of these lengths will be: its rows by kind, its certificate, its books. Only the ids are missing.

    Attributes:
        patterns: The rows by kind, lengths in units of `spec.align` tokens.
        spec: The settings that made it.
        certificate: Rows, lower bound, what proves it.
        accounting: As in `Plan`.
    """

    patterns: Patterns
    spec: PlanSpec
    certificate: Certificate
    accounting: Accounting


def outline(histogram: LengthHistogram, capacity: int, **settings: Any) -> Outline:
    """Plan a histogram. The time depends on distinct lengths, never on samples.

    Args:
        histogram: How many samples have which length.
        capacity: Slots per row.
        **settings: Any other field of `PlanSpec`; a strategy that reads samples in order, and `window`, are refused.

    Returns:
        Rows, certificate and books equal to those of `plan` on any samples of these lengths.

    Raises:
        PadlessError: Settings that need the samples themselves, or samples too long under `oversize="error"`.

    Example:
        >>> ten_billion = LengthHistogram(lengths=np.array([4, 6]), counts=np.array([5_000_000_000] * 2))
        >>> str(outline(ten_billion, capacity=10).certificate)
        '5,000,000,000 rows, optimal: the bound L1 is met'
    """
    return outline_with(histogram, PlanSpec(capacity=capacity, **settings))


def outline_with(histogram: LengthHistogram, spec: PlanSpec) -> Outline:
    """`outline`, with the settings as one object."""
    strategy = find_strategy(spec.strategy)
    if strategy.works_on != "histogram":
        raise PadlessError(f"strategy {spec.strategy!r} reads samples in their order; a histogram has none")
    if spec.window is not None:
        raise PadlessError("windows are made of samples; a histogram has none: leave window out")
    placed, taken = _fitting(histogram, spec)
    units = placed.padded(spec.align)
    patterns, proved = strategy.pack(units.lengths, units.counts, spec.capacity // spec.align, spec)
    return Outline(
        patterns=patterns,
        spec=spec,
        certificate=Certificate.of(patterns.rows, bound_of(placed, spec, proved)),
        accounting=account(
            samples=histogram.samples,
            rows=patterns.rows,
            placed=placed,
            taken=taken,
            widest=int(patterns.widths.max()),
            spec=spec,
        ),
    )


def _fitting(histogram: LengthHistogram, spec: PlanSpec) -> tuple[LengthHistogram, dict[str, int]]:
    """The oversize policy on counts; the twin of `to_pieces`."""
    lengths, counts, limit = histogram.lengths, histogram.counts, spec.limit
    over = lengths > limit
    if not over.any():
        return histogram, {}
    samples = int(counts[over].sum())
    tokens = sum(n * c for n, c in zip(lengths[over].tolist(), counts[over].tolist(), strict=True))
    if spec.oversize == "error":
        raise PadlessError(
            f"{samples:,} of {histogram.samples:,} samples are longer than {row_of(spec)} (the longest has "
            f"{histogram.longest:,}); choose what becomes of them: oversize (--oversize) truncate, split or drop"
        )
    kept = (lengths[~over], counts[~over])
    if spec.oversize == "drop":
        if not kept[0].size:
            raise PadlessError(f"all {samples:,} samples are longer than {row_of(spec)}: dropping leaves nothing")
        whole = LengthHistogram(lengths=kept[0], counts=kept[1])
        return whole, {"dropped_samples": samples, "dropped_tokens": tokens}
    if spec.oversize == "truncate":
        cut = _gathered([kept, (np.array([limit]), np.array([samples]))])
        return cut, {"truncated_samples": samples, "truncated_tokens": tokens - samples * limit}
    full, rest = lengths[over] // limit, lengths[over] % limit
    ends = (rest[rest > 0], counts[over][rest > 0])
    split = _gathered([kept, (np.array([limit]), np.array([int((full * counts[over]).sum())])), ends])
    return split, {"split_samples": samples}


def _gathered(parts: list[tuple[np.ndarray, np.ndarray]]) -> LengthHistogram:
    lengths, where = np.unique(np.concatenate([part[0] for part in parts]), return_inverse=True)
    counts = np.zeros(lengths.size, np.int64)
    np.add.at(counts, where.reshape(-1), np.concatenate([part[1] for part in parts]))
    return LengthHistogram(lengths=lengths, counts=counts)
