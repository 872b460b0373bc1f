"""Scales, ticks and the two forms of a chart."""

import itertools
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from padless.report.svg import LIGHT, STYLE, Chart, Frame, Scale, compact, nice_ticks, text

HOSTILE = "</svg><script>alert(1)</script>&\"'"


def chart(body: str = "") -> Chart:
    return Chart(name="x", title=HOSTILE, summary=HOSTILE, body=body)


@given(st.floats(1e-6, 1e12), st.integers(2, 8))
def test_ticks_are_even_start_at_0_and_reach_the_top(high: float, count: int) -> None:
    ticks = nice_ticks(high, count)
    steps = {round((b - a) / ticks[1], 6) for a, b in itertools.pairwise(ticks)}
    assert ticks[0] == 0
    assert steps == {1.0}
    assert ticks[-1] >= high * (1 - 1e-6)
    assert ticks[-2] < high
    assert len(ticks) <= count + 1


def test_nothing_to_count_still_makes_an_axis() -> None:
    assert nice_ticks(0) == [0, 1]


@pytest.mark.parametrize("form", ["inline", "standalone"])
def test_a_chart_is_xml_in_which_text_is_text(form: str) -> None:
    root = ElementTree.fromstring(getattr(chart(text(1, 2, HOSTILE)), form)())
    names = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert "script" not in names
    assert [element.text for element in root.iter() if element.tag.endswith(("title", "desc", "text"))] == [HOSTILE] * 3


def test_a_chart_that_stands_alone_needs_no_page() -> None:
    alone = chart().standalone()
    assert "var(" not in alone
    assert LIGHT["real"] in alone
    assert "var(--real)" in STYLE
    assert "<style>" not in chart().inline()


def test_a_scale_by_powers_of_two_is_even_in_doublings() -> None:
    scale = Scale(1, 1024, 0, 100, log=True)
    assert [scale(2.0**i) for i in range(11)] == pytest.approx([10.0 * i for i in range(11)])


def test_a_bar_of_something_is_seen_and_a_bar_of_nothing_is_not() -> None:
    frame = Frame((0, 2), (0, 1_000_000))
    frame.bar(0, 1, 1, "real", "one")
    frame.bar(1, 2, 0, "real", "none")
    heights = [float(e.get("height", "")) for e in ElementTree.fromstring(f"<g>{frame}</g>").iter("rect")]
    assert heights == [1.0, 0.0]


@given(st.floats(0, 1e15))
def test_short_numbers_are_short_and_near(value: float) -> None:
    units = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    said = compact(value)
    number, unit = (said[:-1], units[said[-1]]) if said[-1] in units else (said, 1.0)
    assert float(number.replace(",", "")) * unit == pytest.approx(value, rel=0.006)
    assert len(said) <= 9
