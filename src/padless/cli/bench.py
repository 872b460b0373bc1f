"""`padless bench`: measure what packing gains on this machine; one module per measurement, loaded when it runs."""

import importlib

import click

# name -> one line of help. The module padless.cli.bench_<name> holds a click command called `command`.
MEASUREMENTS = {
    "step": "Training steps, padded and packed, on your own lengths.",
    "regime": "Whether projections or attention take the time, and what would help.",
    "savings": "Time saved at 3 to 90 % padding.",
    "attention": "Packed attention against dense masks and padded batches.",
}


class _Measurements(click.Group):
    """Knows its commands' names and imports one only when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(MEASUREMENTS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in MEASUREMENTS:
            return None
        return importlib.import_module(f"padless.cli.bench_{cmd_name}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Measurements"):
            formatter.write_dl(list(MEASUREMENTS.items()))


@click.group(cls=_Measurements)
def command() -> None:
    """Measure what packing gains on this machine."""
