"""Results for machines: on standard output, in a file, or both."""

from pathlib import Path

import click


def deliver(made: str, *, as_json: bool, output: Path | None) -> None:
    """Put the JSON of the results where it was asked for."""
    from padless.durable import write_bytes

    if output is not None:
        write_bytes(output, made.encode())
    if as_json:
        click.echo(made)
