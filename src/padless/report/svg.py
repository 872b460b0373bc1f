"""Charts as SVG text: scales, axes, bars, lines. Colours are names, which a page's style or the palette fills in."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["HEIGHT", "LIGHT", "WIDTH", "Chart", "Frame", "Scale", "compact", "nice_ticks", "text"]

WIDTH, HEIGHT = 480, 270
"""Of a chart, in its own units: narrow enough that its letters stay readable on a phone."""

LIGHT = {
    "paper": "#ffffff",
    "ink": "#1b2026",
    "muted": "#5c646e",
    "rule": "#dfe3e8",
    "real": "#2a66a8",
    "waste": "#d9822b",
    "other": "#8560b5",
    "mark": "#b3372f",
}
"""The colours of a chart that stands alone. Blue and orange are told apart by every kind of colour vision."""

STYLE = """
.chart text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: var(--muted) }
.chart .strong { fill: var(--ink); font-weight: 600 }
.chart .grid { stroke: var(--rule); stroke-width: 1 }
.chart .axis { stroke: var(--muted); stroke-width: 1 }
.chart .mark { stroke: var(--mark); stroke-width: 1.5; stroke-dasharray: 5 3 }
.chart .mark-text { fill: var(--mark); font-weight: 600 }
.chart .real { fill: var(--real) } .chart .waste { fill: var(--waste) } .chart .other { fill: var(--other) }
.chart .none { fill: var(--rule) }
.chart .line { fill: none; stroke: var(--real); stroke-width: 2.5; stroke-linejoin: round }
.chart .ideal { fill: none; stroke: var(--muted); stroke-width: 1.5; stroke-dasharray: 2 4 }
""".strip()
"""Shared by charts in a page and charts that stand alone."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A drawing and what it says in words.

    Attributes:
        name: Of its file, without the ending.
        title: What is drawn.
        summary: What is to be seen, for who cannot see it.
        body: SVG elements.
        height: In the drawing's units; its width is `WIDTH`.
    """

    name: str
    title: str
    summary: str
    body: str
    height: int = HEIGHT

    def inline(self) -> str:
        """The `<svg>` element for a page that holds `STYLE` and defines the colours."""
        return self._element("")

    def standalone(self) -> str:
        """A whole SVG file with its colours written out, for papers and slides."""
        style = re.sub(r"var\(--(\w+)\)", lambda found: LIGHT[found[1]], STYLE)
        paper = f'<rect width="{WIDTH}" height="{self.height}" fill="{LIGHT["paper"]}"/>'
        return self._element(f"<style>{style}</style>{paper}") + "\n"

    def _element(self, before: str) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH} {self.height}" role="img" '
            f'aria-labelledby="{self.name}-title {self.name}-desc">'
            f'<title id="{self.name}-title">{escape(self.title)}</title>'
            f'<desc id="{self.name}-desc">{escape(self.summary)}</desc>{before}{self.body}</svg>'
        )


@dataclass(frozen=True)
class Scale:
    """Maps `low..high` to `start..end`, evenly or by powers of two.

    Example:
        >>> Scale(0, 10, 40, 140)(5), Scale(1, 16, 0, 100, log=True)(4)
        (90.0, 50.0)
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Where a value lies."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log2(low), math.log2(high), math.log2(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


class Frame:
    """The area of a chart between its axes, and the elements drawn so far.

    Args:
        x: `(low, high)` of the horizontal axis.
        y: `(low, high)` of the vertical one.
        log: Whether the horizontal axis counts in powers of two.
        left, bottom: Room for labels.
    """

    def __init__(
        self, x: tuple[float, float], y: tuple[float, float], *, log: bool = False, left: int = 56, bottom: int = 44
    ) -> None:
        self.left, self.right, self.top, self.base = left, WIDTH - 22, 26, HEIGHT - bottom
        self.x = Scale(*x, self.left, self.right, log)
        self.y = Scale(*y, self.base, self.top)
        self.parts: list[str] = []

    def y_axis(self, ticks: Sequence[float], label: str, show: Callable[[float], str]) -> None:
        """Grid lines, their values, and what they count (above the axis, so that nothing is read sideways)."""
        for tick in ticks:
            at = self.y(tick)
            self.parts.append(f'<line class="grid" x1="{self.left}" x2="{self.right}" y1="{at:.1f}" y2="{at:.1f}"/>')
            self.parts.append(text(self.left - 6, at + 4, show(tick), anchor="end"))
        self.parts.append(text(4, self.top - 12, label))

    def x_axis(self, ticks: Sequence[float], label: str, show: Callable[[float], str]) -> None:
        """The base line, values below it, and what they are."""
        self.parts.append(f'<line class="axis" x1="{self.left}" x2="{self.right}" y1="{self.base}" y2="{self.base}"/>')
        self.parts += [text(self.x(tick), self.base + 16, show(tick), anchor="middle") for tick in ticks]
        self.parts.append(text((self.left + self.right) / 2, self.base + 36, label, anchor="middle"))

    def bar(self, low: float, high: float, value: float, kind: str, hint: str, *, gap: float = 1.0) -> None:
        """A bar from `low` to `high`; one that is not zero is never thinner or lower than a visible line."""
        x0, x1, y = self.x(low), self.x(high), self.y(value)
        tall = max(self.base - y, 1.0 if value > self.y.low else 0.0)
        self.parts.append(rect(x0 + gap / 2, self.base - tall, max(x1 - x0 - gap, 0.8), tall, kind, hint))

    def upright(self, at: float, label: str) -> None:
        """A dashed vertical line with its name at its top."""
        x = self.x(at)
        left_half = x < (self.left + self.right) / 2
        self.parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{self.top - 8}" y2="{self.base}"/>')
        self.parts.append(
            text(
                x + (6 if left_half else -6), self.top, label, anchor="start" if left_half else "end", kind="mark-text"
            )
        )

    def line(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """A line through points."""
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.parts.append(f'<polyline class="{kind}" points="{path}"/>')

    def dot(self, x: float, y: float, kind: str, hint: str) -> None:
        """A point that says its values when it is hovered over."""
        self.parts.append(
            f'<circle class="{kind}" cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="4">'
            f"<title>{escape(hint)}</title></circle>"
        )

    def note(self, x: float, y: float, words: str) -> None:
        """Words that end at a point of the chart."""
        self.parts.append(text(self.x(x), self.y(y), words, anchor="end"))

    def __str__(self) -> str:
        return "".join(self.parts)


def rect(x: float, y: float, width: float, height: float, kind: str, hint: str) -> str:
    """A filled rectangle that says its value when it is hovered over."""
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="1.5">'
        f"<title>{escape(hint)}</title></rect>"
    )


def text(x: float, y: float, value: str, *, anchor: str = "start", kind: str = "") -> str:
    """A line of text; what it says is escaped."""
    styled = f' class="{kind}"' if kind else ""
    return f'<text{styled} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(value)}</text>'


def nice_ticks(high: float, count: int = 4) -> list[float]:
    """Round values from 0 to at least `high`.

    Example:
        >>> nice_ticks(730)
        [0, 200, 400, 600, 800]
        >>> nice_ticks(0.9)
        [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if high <= 0:
        return [0, 1]
    power = 10.0 ** math.floor(math.log10(high / count))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if high <= factor * power * count * (1 + 1e-9))
    steps = math.ceil(high / step - 1e-9)
    ticks = [round(step * i, 10) for i in range(steps + 1)]
    return [int(tick) for tick in ticks] if step >= 1 and float(step).is_integer() else ticks


def compact(value: float) -> str:
    """A number in at most five characters or so.

    Example:
        >>> [compact(n) for n in (0, 0.25, 7, 1500, 20000, 3_400_000, 2.5e9)]
        ['0', '0.25', '7', '1.5k', '20k', '3.4M', '2.5G']
    """
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{unit}" if abs(value) < 1000 * factor else f"{value / factor:,.0f}{unit}"
    return f"{value:.3g}"
