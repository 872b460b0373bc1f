"""Progress of long work: a bar on a terminal, a log line every few seconds elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

EVERY = 5.0  # seconds between log lines


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str, float | None, str], None]]:
    """Yield `update(phase, fraction, detail)`; a fraction of None means that nobody knows how much is left.

    All of it goes to standard error, so that standard output holds results alone.
    """
    if quiet:
        yield lambda phase, fraction, detail: None
    elif sys.stderr.isatty():
        with _bar() as update:
            yield update
    else:
        yield _logger()


@contextmanager
def _bar() -> Iterator[Callable[[str, float | None, str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=8) as bars:
        task = bars.add_task("", total=None, detail="")

        def update(phase: str, fraction: float | None, detail: str) -> None:
            total = None if fraction is None else 1.0
            bars.update(task, description=phase, total=total, completed=fraction or 0.0, detail=detail)

        yield update


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
