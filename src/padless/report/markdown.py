"""A report as Markdown, short enough for a pull request."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from padless.report.tables import audit_line, bench_table, waste_rows

if TYPE_CHECKING:
    from padless.report.make import Report

__all__ = ["markdown"]


def markdown(report: "Report") -> str:
    """Before and after, the certificate, what was lost, and what was measured and proven where it is there."""
    facts = report.facts
    parts = [
        f"**Packed `{_cell(facts.name)}`, capacity {facts.plan.capacity:,}: {facts.fewer_slots:.1f}x fewer slots**",
        _table(["", "padded", "packed"], waste_rows(facts)),
        f"{facts.plan.certificate}.",
    ]
    lost = [f"{loss.count:,} {loss.what}" for loss in facts.losses() if loss.count]
    parts.append(f"Not whole in a row: {', '.join(lost)}." if lost else "Every sample is whole in one row.")
    if report.bench is not None and report.bench.arms:
        bench = report.bench
        where = ", ".join(filter(None, [bench.model, bench.machine, bench.date]))
        parts += [_table(*bench_table(bench)), *([_cell(where)] if where else [])]
    if report.audit is not None:
        bad = [f"- {check.name}: {check.verdict}: {check.finding}" for check in report.audit.results
               if check.verdict in ("violated", "undecided")]  # fmt: skip
        parts.append(_cell(f"Audit of {report.audit.subject}: {audit_line(report.audit)}."))
        parts += ["\n".join(_cell(line) for line in bad)] if bad else []
    return "\n\n".join(parts) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(cell if i == 1 else _cell(cell) for cell in line) + " |" for i, line in
                     enumerate(lines))  # fmt: skip


def _cell(value: str) -> str:
    """Text that stays text: no cell ends early, and nothing in it is markup."""
    return re.sub(r"([|<>\\`*_\[\]])", r"\\\1", " ".join(value.split()))
