"""Tables that read the same on a terminal and in a log."""

from collections.abc import Sequence
from typing import Any


def console(*, stderr: bool = False) -> Any:
    """A rich console that neither guesses at highlights nor wraps what a log would keep in one line."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> Any:
    """A plain table: the first `left` columns to the left, numbers to the right."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for index, name in enumerate(header):
        made.add_column(name, justify="left" if index < left else "right", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    return made
