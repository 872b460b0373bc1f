"""Progress of long work: a bar on a terminal, a log line every few seconds elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import click

EVERY = 5.0  # seconds between log lines


class Progress(NamedTuple):
    """How a command tells how far it is. Progress goes to standard error, so that it never mixes with results.

    Attributes:
        update: Called with (phase, fraction, detail); a fraction of None means that nobody knows how much is left.
        say: Called with a line that stays.
    """

    update: Callable[[str, float | None, str], None]
    say: Callable[[str], None]


@contextmanager
def progress(quiet: bool) -> Iterator[Progress]:
    """A bar on a terminal, a line every few seconds elsewhere, nothing when quiet."""
    if quiet:
        yield Progress(update=lambda phase, fraction, detail: None, say=lambda line: None)
    elif sys.stderr.isatty():
        with _bar() as shown:
            yield shown
    else:
        yield Progress(update=_logger(), say=click.echo)


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True, refresh_per_second=8) as bars:
        task = bars.add_task("", total=None, detail="")

        def update(phase: str, fraction: float | None, detail: str) -> None:
            total = None if fraction is None else 1.0
            bars.update(task, description=phase, total=total, completed=fraction or 0.0, detail=detail)

        yield Progress(update=update, say=lambda line: bars.console.print(line, highlight=False, markup=False))


def _logger() -> Callable[[str, float | None, str], None]:
    began = last = time.monotonic()

    def update(phase: str, fraction: float | None, detail: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < EVERY:
            return
        last = now
        share = "" if fraction is None else f" {fraction:.0%}"
        click.echo(f"padless: {now - began:.0f} s, {phase}{share} {detail}".rstrip(), err=True)

    return update
