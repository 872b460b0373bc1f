"""One self-contained HTML file that shows packing to a colleague; its charts as SVG, its numbers as Markdown."""

from padless.report.make import Report, make_report

__all__ = ["Report", "make_report"]
