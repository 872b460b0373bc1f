"""Each chart is read back as numbers and held against the numbers it was made from."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from padless import TokenStore, plan
from padless.report import make_report
from padless.report.charts import (
    balance_chart,
    fill_chart,
    lengths_chart,
    savings_chart,
    segments_chart,
    throughput_chart,
    waste_chart,
)
from padless.report.given import Arm, Bench, Saving
from padless.report.ranks import balance
from padless.report.svg import HEIGHT, WIDTH, Chart


def bars(chart: Chart) -> list[tuple[dict[str, float], str, str]]:
    """`(geometry, class, hint)` of every rectangle that says something."""
    root = ElementTree.fromstring(chart.inline())
    found = []
    for element in root.iter("{http://www.w3.org/2000/svg}rect"):
        box = {name: float(element.get(name, "nan")) for name in ("x", "y", "width", "height")}
        found.append((box, element.get("class", ""), element[0].text or ""))
    return found


def counted(chart: Chart, what: str) -> list[int]:
    """The counts that the bars' hints tell, e.g. of `samples`."""
    pattern = re.compile(rf": ([\d,]+) {what}")
    return [int(match[1].replace(",", "")) for _, _, hint in bars(chart) if (match := pattern.search(hint))]


def assert_inside(chart: Chart) -> None:
    for box, _, hint in bars(chart):
        assert box["x"] >= 0, hint
        assert box["x"] + box["width"] <= WIDTH, hint
        assert box["y"] >= 0, hint
        assert box["y"] + box["height"] <= max(chart.height, HEIGHT), hint


def test_waste_is_drawn_to_one_scale(store: TokenStore) -> None:
    facts = make_report(store).facts
    chart = waste_chart(facts)
    books = facts.plan.accounting
    assert counted(chart, "slots") == [
        books.real_tokens,
        facts.slots_before - books.real_tokens,
        books.real_tokens,
        books.tail_padding,
        books.alignment_padding,
    ]
    drawn = [(box["width"], int(re.findall(r"[\d,]+", hint)[0].replace(",", ""))) for box, _, hint in bars(chart)[:5]]
    unit = drawn[1][0] / drawn[1][1]
    assert all(width == pytest.approx(count * unit, abs=0.8) for width, count in drawn)
    assert_inside(chart)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=200), st.integers(1, 40_000))
def test_the_histogram_counts_every_sample_once(lengths: list[int], capacity: int) -> None:
    array = np.array(lengths)
    chart = lengths_chart(array, capacity)
    assert sum(counted(chart, "samples")) == len(lengths)
    for _, _, hint in bars(chart):
        low, high, count = (int(n.replace(",", "")) for n in re.findall(r"[\d,]+", hint))
        assert count == int(((array >= low) & (array <= high)).sum()), hint
    assert f"capacity {capacity:,}" in chart.body
    assert f"{int((array > capacity).sum()):,} are longer" in chart.summary
    assert_inside(chart)


@settings(deadline=None, max_examples=60)
@example([1000, 999, 950, 1000])
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=100))
def test_fill_and_segments_count_every_row_once(values: list[int]) -> None:
    array = np.array(values)
    fill, segments = fill_chart(array, 1000), segments_chart(array)
    assert sum(counted(fill, "rows?")) == len(values)
    assert sum(counted(segments, "rows")) == len(values)
    assert counted(fill, "rows?")[-1] == int((array == 1000).sum())
    assert_inside(fill)
    assert_inside(segments)


def test_ranks_are_drawn_in_units_of_the_mean() -> None:
    shares = balance(plan(np.arange(1, 400) % 97 + 1, capacity=128))
    assert shares is not None
    chart = balance_chart(shares)
    drawn = [float(match[1]) for _, _, hint in bars(chart) if (match := re.search(r": ([\d.]+) of the mean", hint))]
    assert len(drawn) == 16
    assert max(drawn[0::2]) == pytest.approx(shares.ways[0].worst, abs=1e-3)
    assert np.mean(drawn[0::2]) == pytest.approx(1, abs=1e-3)
    assert_inside(chart)


def test_arms_that_lost_are_drawn_too_and_those_without_a_number_are_not() -> None:
    arms = (
        Arm(name="padded & <slow>", real_tokens_per_second=1000),
        Arm(name="packed", real_tokens_per_second=4000),
        Arm(name="broken", note="ran out of memory"),
    )
    chart = throughput_chart(Bench(arms=arms))
    (slow, slow_kind, _), (fast, fast_kind, _) = bars(chart)
    assert fast["width"] == pytest.approx(4 * slow["width"], rel=0.01)
    assert (slow_kind, fast_kind) == ("other", "real")
    assert "4.00x" in chart.body
    assert_inside(chart)


def test_the_savings_curve_is_sorted_and_may_go_below_zero() -> None:
    points = tuple(Saving(padding=p, time_saved=s) for p, s in ((0.9, 0.88), (0.03, -0.02), (0.5, 0.45)))
    root = ElementTree.fromstring(savings_chart(Bench(savings=points)).inline())
    dots = [e for e in root.iter() if e.tag.endswith("circle")]
    assert [e[0].text for e in dots if e.get("class") == "waste"] == [
        "3% padding: 2.28% of the time saved, as reported",
        "90% padding: 89.73% of the time saved, as reported",
    ]
    circles = [(float(e.get("cx", "")), float(e.get("cy", ""))) for e in dots if e.get("class") == "real"]
    xs, ys = zip(*circles, strict=True)
    assert list(xs) == sorted(xs)
    assert list(ys) == sorted(ys, reverse=True)
    assert all(0 < y < HEIGHT for y in ys)
