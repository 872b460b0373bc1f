"""The charts of a report, each made from numbers alone."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from padless.measure.savings import REPORTED
from padless.report.facts import Facts
from padless.report.given import Arm, Bench
from padless.report.ranks import Balance
from padless.report.svg import HEIGHT, WIDTH, Chart, Frame, compact, nice_ticks, rect, text

__all__ = [
    "balance_chart",
    "charts",
    "fill_chart",
    "lengths_chart",
    "savings_chart",
    "segments_chart",
    "throughput_chart",
    "waste_chart",
]

BINS = 56
FILLS = (0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0)


def charts(facts: Facts, shares: Balance | None, bench: Bench | None) -> dict[str, Chart]:
    """Every chart that there is something to draw for, by name."""
    capacity = facts.plan.capacity
    made = [
        waste_chart(facts),
        lengths_chart(facts.lengths, capacity),
        fill_chart(facts.row_tokens, capacity),
        segments_chart(facts.row_segments),
    ]
    if shares is not None:
        made.append(balance_chart(shares))
    if bench is not None and any(arm.real_tokens_per_second for arm in bench.arms):
        made.append(throughput_chart(bench))
    if bench is not None and bench.savings:
        made.append(savings_chart(bench))
    return {chart.name: chart for chart in made}


def waste_chart(facts: Facts) -> Chart:
    """Slots of the padded rows and of the packed ones on one scale, by what is in them."""
    books = facts.plan.accounting
    before, after = facts.slots_before, books.slots
    tail_before = before - books.real_tokens
    bars = [
        ("padded", before, [("real", "real tokens", books.real_tokens), ("waste", "padding", tail_before)]),
        (
            "packed",
            after,
            [
                ("real", "real tokens", books.real_tokens),
                ("waste", "tail padding", books.tail_padding + books.batch_padding),
                ("other", "alignment padding", books.alignment_padding),
            ],
        ),
    ]
    left, room, parts = 70, WIDTH - 70 - 16, []
    for number, (name, slots, split) in enumerate(bars):
        top, at = 12 + 66 * number, float(left)
        parts.append(text(left - 10, top + 24, name, anchor="end", kind="strong"))
        for kind, said, count in split:
            wide = room * count / before
            if count:
                parts.append(rect(at, top, max(wide, 0.8), 36, kind, f"{name}: {count:,} slots of {said}"))
            at += wide
        padding = slots - books.real_tokens
        share = padding / slots
        parts.append(text(left, top + 52, f"{slots:,} slots, {share:.2%} of them padding"))
    named = [("real", "real tokens"), ("waste", "tail padding"), ("other", "alignment padding")]
    for number, (kind, said) in enumerate(named[: 3 if books.alignment_padding else 2]):
        x = left + 118 * number
        parts += [rect(x, 150, 11, 11, kind, said), text(x + 16, 160, said)]
    return Chart(
        name="waste",
        title="Slots before and after",
        summary=f"Padded: {facts.slots_before:,} slots, {facts.waste_before:.2%} padding. "
        f"Packed: {after:,} slots, {books.waste_rate:.2%} padding.",
        body="".join(parts),
        height=172,
    )


def lengths_chart(lengths: np.ndarray, capacity: int) -> Chart:
    """How many samples have which length, with the row's capacity."""
    top = max(int(lengths.max()), capacity)
    log = top > 24 * float(np.median(lengths))
    edges = _octaves(top) if log else _even(top)
    counts, _ = np.histogram(lengths, edges)
    ticks = _counts_to(int(counts.max()))
    low = 1.0 if log else 0.0
    frame = Frame((low, float(edges[-1])), (0, ticks[-1]), log=log)
    frame.y_axis(ticks, "samples", compact)
    for low, high, count in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True):
        kind = "waste" if low > capacity else "real"
        if count:
            frame.bar(low, high, count, kind, f"{low:,} to {high - 1:,} tokens: {count:,} samples")
    across = [2.0**i for i in range(0, int(np.log2(top)) + 1, 2)] if log else [t for t in nice_ticks(top) if t <= top]
    frame.x_axis(across, "tokens of a sample" + (", each step four times as many" if log else ""), "{:,.0f}".format)
    frame.upright(capacity + 1, f"capacity {capacity:,}")  # what is left of the line fits a row
    over = int((lengths > capacity).sum())
    return Chart(
        name="lengths",
        title="Lengths of the samples",
        summary=f"{len(lengths):,} samples of {lengths.min():,} to {lengths.max():,} tokens, median "
        f"{np.median(lengths):,.0f}; {over:,} are longer than a row of {capacity:,}.",
        body=str(frame),
    )


def fill_chart(row_tokens: np.ndarray, capacity: int) -> Chart:
    """How many rows are how full, finer towards full because that is where rows are."""
    shares = row_tokens / capacity
    names = [f"{_percent(low)} - {_percent(high)}" for low, high in itertools.pairwise(FILLS)]
    counts = [int(((shares >= low) & (shares < high)).sum()) for low, high in itertools.pairwise(FILLS)]
    names, counts = [*names, "full"], [*counts, int((shares >= 1).sum())]
    body = _sideways(names, counts, lambda n: f"{n:,} rows" if n != 1 else "1 row", label="% of the row's slots")
    return Chart(
        name="fill",
        title="How full the rows are",
        summary=f"{len(shares):,} rows, on average {shares.mean():.2%} full; "
        + ", ".join(f"{name}: {count:,}" for name, count in zip(names, counts, strict=True) if count),
        body=body,
    )


def segments_chart(row_segments: np.ndarray) -> Chart:
    """How many rows hold how many segments."""
    low, high = int(row_segments.min()), int(row_segments.max())
    step = max(1, -(-(high - low + 1) // 32))
    edges = np.arange(low, high + step + 1, step)
    counts, _ = np.histogram(row_segments, edges)
    ticks = _counts_to(int(counts.max()))
    frame = Frame((edges[0] - 0.5, edges[-1] - 0.5), (0, ticks[-1]))
    frame.y_axis(ticks, "rows", compact)
    for first, count in zip(edges[:-1].tolist(), counts.tolist(), strict=True):
        many = f"{first:,}" if step == 1 else f"{first:,} to {first + step - 1:,}"
        if count:
            frame.bar(first - 0.5, first + step - 0.5, count, "real", f"{many} segments: {count:,} rows", gap=2)
    shown = edges[:-1][:: max(1, -(-(len(edges) - 1) // 8))]
    frame.x_axis(
        [x + (step - 1) / 2 for x in shown.tolist()], "segments in a row", lambda x: compact(x - (step - 1) / 2)
    )
    return Chart(
        name="segments",
        title="Segments per row",
        summary=f"From {low:,} to {high:,} segments in a row, {row_segments.mean():.1f} on average.",
        body=str(frame),
    )


def balance_chart(shares: Balance) -> Chart:
    """What each rank has to do in the worst step of an epoch, dealt in order and dealt by cost."""
    in_order, by_cost = shares.ways[0], shares.ways[1]
    ticks = nice_ticks(max(in_order.worst, by_cost.worst))
    frame = Frame((-0.5, shares.ranks - 0.5), (0, ticks[-1]))
    frame.y_axis(ticks, "cost / mean", lambda t: f"{t:g}")
    for rank in range(shares.ranks):
        for way, kind, x0 in ((in_order, "waste", rank - 0.38), (by_cost, "real", rank)):
            hint = f"rank {rank}, dealt {way.name}: {way.loads[rank]:.3f} of the mean"
            frame.bar(x0, x0 + 0.38, way.loads[rank], kind, hint)
    frame.x_axis(range(shares.ranks), "rank", str)
    for number, (kind, way) in enumerate((("waste", in_order), ("real", by_cost))):
        x = WIDTH - 250 + 130 * number
        frame.parts += [rect(x, 2, 11, 11, kind, way.name), text(x + 16, 12, f"dealt {way.name}")]
    return Chart(
        name="balance",
        title=f"The worst step of an epoch over {shares.ranks} ranks",
        summary=f"Slowest rank over the mean: {in_order.worst:.3f} dealt in order, {by_cost.worst:.3f} by cost.",
        body=str(frame),
    )


def throughput_chart(bench: Bench) -> Chart:
    """Real tokens per second of every arm, those that lost included."""
    arms = [arm for arm in bench.arms if arm.real_tokens_per_second]
    best = max(arms, key=_speed)
    body = _sideways(
        [arm.name for arm in arms],
        [_speed(arm) for arm in arms],
        lambda speed: f"{compact(speed)}/s",
        label="real tokens per second",
        left=176,
        beside=["" if (ratio := bench.ratio_of(arm)) is None else f"{ratio:.2f}x" for arm in arms],
        kinds=["real" if arm is best else "other" for arm in arms],
    )
    return Chart(
        name="throughput",
        title="Real tokens per second",
        summary="; ".join(f"{arm.name}: {_speed(arm):,.0f}" for arm in arms),
        body=body,
        height=_tall(len(arms)),
    )


def savings_chart(bench: Bench) -> Chart:
    """Time saved against the padding there was to remove, beside what was reported; the dotted line is all of it."""
    points = sorted((point.padding, point.time_saved) for point in bench.savings)
    low = min(0.0, *(saved for _, saved in points))
    frame = Frame((0, 1), (low, 1))
    ticks = [0, 0.25, 0.5, 0.75, 1.0]
    frame.y_axis([low, *ticks] if low < 0 else ticks, "time saved", lambda t: f"{t:.0%}")
    frame.x_axis(ticks, "padding before", lambda t: f"{t:.0%}")
    frame.line([(0, 0), (1, 1)], "ideal")
    frame.line(points, "line")
    for padding, saved in points:
        frame.dot(padding, saved, "real", f"{padding:.1%} padding: {saved:.1%} of the time saved")
    for padding, saved in REPORTED.items():
        frame.dot(padding, saved, "waste", f"{padding:.0%} padding: {saved:.2%} of the time saved, as reported")
    frame.note(0.97, 0.06, "orange: reported, arXiv 2603.11101")
    said = ", ".join(f"{saved:.1%} at {padding:.0%}" for padding, saved in points)
    return Chart(name="savings", title="Time saved by padding rate", summary=f"Saved: {said}.", body=str(frame))


def _sideways(
    names: Sequence[str],
    values: Sequence[float],
    show: Callable[[Any], str],
    *,
    label: str,
    left: int = 96,
    beside: Sequence[str] = (),
    kinds: Sequence[str] = (),
) -> str:
    """Bars from left to right, one line each, with their values behind them."""
    most = max(*values, 1e-12)
    parts, room = [text(left, 16, label)], WIDTH - left - 16 - (108 if beside else 76)
    pitch = (HEIGHT - 30) / 7 if not beside else 34
    for number, (name, value) in enumerate(zip(names, values, strict=True)):
        top = 26 + pitch * number
        kind = kinds[number] if kinds else "real"
        wide = max(room * value / most, 1.0 if value else 0.0)
        parts.append(text(left - 8, top + pitch / 2 + 1, _short(name, left), anchor="end", kind="strong"))
        parts.append(rect(left, top, wide, pitch - 10, kind, f"{name}: {show(value)}"))
        behind = "  ".join(filter(None, [show(value), beside[number] if beside else ""]))
        parts.append(text(left + wide + 6, top + pitch / 2 + 1, behind))
    return "".join(parts)


def _short(name: str, left: int) -> str:
    most = left // 9
    return name if len(name) <= most else name[: most - 1] + "\u2026"


def _tall(bars: int) -> int:
    return 40 + 34 * bars


def _speed(arm: Arm) -> float:
    return arm.real_tokens_per_second or 0.0


def _counts_to(most: int) -> list[float]:
    """Ticks for things that are counted: there is no half of a sample."""
    return nice_ticks(max(most, 4))


def _octaves(top: int) -> np.ndarray:
    """Edges four to a doubling, from 1 to above `top`, each a whole number once."""
    steps = 4 * top.bit_length()
    return np.unique(np.ceil(2 ** (np.arange(steps + 1) / 4))).astype(np.int64)


def _even(top: int) -> np.ndarray:
    """Edges equally far apart, from 0 to above `top`, all whole numbers."""
    step = -(-(top + 1) // BINS)
    return np.arange(0, top + step + 1, step)


def _percent(share: float) -> str:
    return f"{100 * share:g}"
