"""`padless`: one command, one file per sub-command, nothing heavy imported until a sub-command runs."""

import importlib
import sys

import click

from padless import __version__
from padless.errors import PadlessError, ViolationError

# name -> one line of help. The module padless.cli.<name> holds a click command called `command`.
COMMANDS = {
    "pack": "Turn text into packed, verified, reproducible rows.",
    "plan": "Plan rows from lengths alone, or re-plan a store.",
    "verify": "Check every promise that needs no model.",
    "inspect": "Look at rows in the terminal.",
    "export": "Write packed rows in other people's formats.",
    "backends": "Which attention kernels this machine can run, and why not.",
    "bench": "Measure what packing gains on this machine.",
    "ablate": "Which camera slots a policy could do without, and how to be sure.",
    "simulate": "What schedules of global batches gain on a cluster, on paper.",
    "audit": "Prove on your own model that packing changed nothing.",
    "report": "One HTML file that shows it to a colleague.",
}

WRONG_USE = 2
VIOLATION = 1
BUG = 70  # EX_SOFTWARE of sysexits.h


class LazyGroup(click.Group):
    """A group that knows its commands' names and imports one only when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command's name, in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command, the moment it is asked for."""
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f"padless.cli.{cmd_name}").command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; for an unknown one, say which may have been meant."""
        if args[0] not in COMMANDS:
            import difflib

            meant = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {meant[0]}?" if meant else f"there are {', '.join(COMMANDS)}"
            ctx.fail(f"no such command: {args[0]}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, importing none."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="padless")
def group() -> None:
    """Remove padding from transformer training, and prove that nothing else changed."""


def main(args: list[str] | None = None) -> None:
    """Run the command line; every foreseen error is one clear line and an exit code.

    Exit codes: 0 fine, 1 a violation was found, 2 wrong use, 70 a bug in padless, 130 interrupted (the same command
    resumes).
    """
    try:
        code = group.main(args=args, prog_name="padless", standalone_mode=False)
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.Abort:
        click.echo("padless: interrupted; the same command goes on where this one stopped", err=True)
        code = 130
    except click.ClickException as error:
        error.show()
        code = WRONG_USE
    except ViolationError as error:
        click.echo(f"padless: {error}", err=True)
        code = VIOLATION
    except PadlessError as error:
        click.echo(f"padless: {error}", err=True)
        code = WRONG_USE
    except Exception:  # noqa: BLE001 - whatever it is, a bug must not exit with the code of a broken promise
        import traceback

        traceback.print_exc()
        click.echo("padless: this is a bug in padless; the lines above tell where", err=True)
        code = BUG
    sys.exit(code if isinstance(code, int) else 0)
