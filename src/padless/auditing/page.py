"""The report as one HTML file that opens offline: no scripts, no links to anywhere."""

from pathlib import Path

from padless.auditing.checks import CHECKS
from padless.auditing.explain import EXPLANATIONS
from padless.auditing.mechanisms import MECHANISMS
from padless.auditing.report import AuditReport

HEADLINES = {0: "All that applies is proven", 1: "Something leaks or is wrong", 3: "Something could not be decided"}


def render_page(report: AuditReport) -> str:
    """The HTML text."""
    import jinja2

    template = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(template).render(
        report=report,
        headline=HEADLINES[report.exit_code],
        questions=CHECKS,
        explanations=EXPLANATIONS,
        mechanisms=MECHANISMS,
        stages=_stages(report),
    )


def write_page(report: AuditReport, path: Path) -> None:
    """Write the page."""
    path.write_text(render_page(report), encoding="utf-8")


def _stages(report: AuditReport) -> list[dict]:
    """Leak matrices of the isolation check, with shares for colouring: 1 is the largest movement of the stage."""
    found = [result for result in report if result.name == "isolation"]
    stages = found[0].details.get("stages", []) if found else []
    for_page = []
    for stage in stages:
        largest = max((max(row) for row in stage["leaks"]), default=0.0) or 1.0
        cells = [[{"value": value, "share": value / largest} for value in row] for row in stage["leaks"]]
        for_page.append({"stage": stage["stage"], "cells": cells})
    return for_page
