"""How an audit looks on a terminal: progress while it runs, a table when it is done."""

from collections.abc import Callable

import click

from padless.auditing.checks import CHECKS
from padless.auditing.explain import EXPLANATIONS
from padless.auditing.mechanisms import MECHANISMS
from padless.auditing.report import AuditReport, CheckResult
from padless.cli._progress import Progress

COLOURS = {"proven": "green", "violated": "red", "undecided": "yellow", "not-applicable": "bright_black"}
SUMMARY = {
    0: "all that applies is proven",
    1: "something leaks or is wrong",
    3: "something could not be decided",
}


def told(progress: Progress) -> Callable[[str, CheckResult | None], None]:
    """What `audit` calls around each check."""
    names = list(CHECKS)

    def tell(check: str, result: CheckResult | None) -> None:
        progress.update(check, (names.index(check) + (result is not None)) / len(names), CHECKS[check])

    return tell


def show(report: AuditReport, *, explain: bool) -> None:
    """Print the table, then what is wrong and what to do about it."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from padless.cli._tables import console

    printer = console()
    width = printer.width = printer.width if printer.is_terminal else 120
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name in ("check", "verdict", "measured", "allowed", "what was seen"):
        table.add_column(name, justify="right" if name in ("measured", "allowed") else "left", no_wrap=True)
    names = max(len(result.name) for result in report)
    room = max(20, width - names - 40)
    for result in report:
        table.add_row(
            result.name,
            Text(result.verdict, style=COLOURS[result.verdict]),
            number(result.measured),
            number(result.tolerance),
            Text(_one_line(result.finding, room)),
        )
    printer.print(Text(f"audit of {report.subject}", style="bold"))
    printer.print(table)
    filled = report.settings.get("zero_parameters_filled_while_auditing")
    if filled:
        click.echo(
            f"\n{len(filled)} all-zero parameters held random values during the audit, so that they hide nothing."
        )
    _findings(report)
    if explain:
        _explain(report)
    colour = {0: "green", 1: "red"}.get(report.exit_code, "yellow")
    seconds = sum(result.seconds for result in report)
    click.echo(f"\n{click.style(SUMMARY[report.exit_code], fg=colour)} ({seconds:.1f} s)")


def _one_line(text: str, room: int) -> str:
    """The beginning of a finding; the whole stands below the table when it matters, and in the JSON always."""
    return text if len(text) <= room else text[: room - 1].rstrip() + "…"


def number(value: float | None) -> str:
    """A number for a table; 0 is exactly 0, and a dash is nothing measured."""
    if value is None:
        return "-"
    return "0" if value == 0 else f"{value:.2g}"


def _findings(report: AuditReport) -> None:
    """In full: what was seen, once for each mechanism (or reason), with what to do about it."""
    seen: dict[tuple[str, str], list[CheckResult]] = {}
    for result in report.of("violated"):
        if result.mechanism != "trap":
            seen.setdefault((result.mechanism, ""), []).append(result)
    for result in report.of("undecided"):
        seen.setdefault(("", result.finding), []).append(result)
    for (mechanism, reason), results in seen.items():
        names = ", ".join(result.name for result in results)
        if mechanism:
            known = MECHANISMS[mechanism]
            click.echo(f"\n{click.style(mechanism, fg='red')} ({names})")
            lines = [known.meaning, *(f"{result.name}: {result.finding}" for result in results), f"-> {known.remedy}"]
        else:
            click.echo(f"\n{click.style('undecided', fg='yellow')} ({names})")
            lines = [reason]
        for line in lines:
            click.echo(click.wrap_text(line, width=110, initial_indent="  ", subsequent_indent="    "))


def _explain(report: AuditReport) -> None:
    click.echo("")
    for result in report:
        text = EXPLANATIONS.get(result.name)
        if text:
            click.echo(click.wrap_text(f"{result.name}: {text}", width=100, subsequent_indent="  "))
        for note in result.notes:
            click.echo(click.wrap_text(f"- {note}", width=100, initial_indent="  ", subsequent_indent="    "))
