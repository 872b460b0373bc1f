"""The page: a template filled in, with its style and script inside, and a policy that lets nothing else in."""

import base64
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from padless import __version__
from padless.errors import PadlessError
from padless.report.row import Gap
from padless.report.svg import STYLE
from padless.report.tables import BOUNDS, audit_line, balance_rows, bench_table, length_rows, plan_facts, waste_rows

if TYPE_CHECKING:
    from jinja2 import Template

    from padless.report.make import Report

__all__ = ["LARGEST", "page"]

LARGEST = 1_000_000
"""Bytes; a page is meant to be mailed."""

ASSETS = Path(__file__).parent / "assets"
SHOWN_SOURCES = 20
SHOWN_CHECKS = 60
VERDICTS = {"proven": "\u2713", "violated": "\u2717", "undecided": "?", "not-applicable": "\u2013"}


def page(report: "Report") -> str:
    """Fill in the template. All that comes from data goes through its escaping.

    Raises:
        PadlessError: When the page would not be small, which bench or audit files of unusual size can bring about.
    """
    style, script = _asset("report.css"), _asset("inspector.js")
    filled = _template().render(
        report=report,
        facts=report.facts,
        books=report.facts.plan.accounting,
        charts={name: chart.inline() for name, chart in report.charts.items()},
        waste=waste_rows(report.facts),
        bound=BOUNDS.get(report.facts.plan.certificate.bound_by, ""),
        balance=balance_rows(report.balance) if report.balance else [],
        bench=bench_table(report.bench) if report.bench else None,
        lengths=length_rows(report.facts),
        audit=audit_line(report.audit) if report.audit else "",
        checks=report.audit.results[:SHOWN_CHECKS] if report.audit else (),
        conventions=plan_facts(report.facts),
        sources=report.facts.manifest.sources[:SHOWN_SOURCES],
        spans=json.dumps(report.row.spans),
        policy=_policy(style + STYLE, script),
        style=style + STYLE,
        script=script,
        version=__version__,
    )
    if len(filled.encode()) >= LARGEST:
        raise PadlessError(
            f"the report would have {len(filled.encode()):,} bytes, more than the {LARGEST:,} that it may have; the "
            "bench or audit file holds unusually long texts, leave it out or shorten it"
        )
    return filled


@cache
def _template() -> "Template":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count"] = lambda value: f"{value:,}"
    environment.filters["percent"] = lambda value, digits=2: f"{value:.{digits}%}"
    environment.filters["cut"] = lambda value: value if len(value) <= 600 else value[:599] + "\u2026"
    environment.filters["astuple"] = lambda loss: (loss.what, f"{loss.count:,}", loss.said)
    environment.globals["verdict_sign"] = lambda verdict: VERDICTS.get(verdict, "?")
    environment.tests["gap"] = lambda part: isinstance(part, Gap)
    return environment.get_template("page.html")


def _asset(name: str) -> str:
    return (ASSETS / name).read_text("utf-8")


def _policy(style: str, script: str) -> str:
    """Only this style and this script, and no address at all: markup that slipped in could still do nothing."""
    digests = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in (style, script)]
    return (
        f"default-src 'none'; style-src 'sha256-{digests[0]}'; script-src 'sha256-{digests[1]}'; base-uri 'none'; "
        "form-action 'none'"
    )
