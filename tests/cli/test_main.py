"""The frame of the command line: help in no time, one line for every error, exit codes."""

import importlib
import statistics
import subprocess
import sys
import time

import click
import pytest

from padless.cli.main import COMMANDS, LazyGroup, main
from padless.errors import PadlessError, ViolationError


def seconds(*arguments: str) -> float:
    """Wall time of a whole process, the median of five."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


@pytest.mark.parametrize("arguments", [["--help"], ["pack", "--help"]])
def test_help_takes_no_longer_than_a_few_bare_interpreters(arguments: list[str]) -> None:
    """The promise is 0.3 s; a bare interpreter is the unit here, because machines differ and CI is noisy."""
    assert seconds("-m", "padless", *arguments) < max(0.3, 12 * seconds("-c", "pass"))


@pytest.mark.parametrize("arguments", [["--help"], ["pack", "--help"], ["verify", "--help"], ["inspect", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom padless.cli.main import main\n"
        f"try: main({arguments!r})\nexcept SystemExit: pass\n"
        "print('LOADED', *sorted({name.split('.')[0] for name in sys.modules}))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = set(out.split("LOADED")[1].split())
    assert not loaded & {"numpy", "torch", "pyarrow", "tokenizers", "transformers", "rich", "msgspec"}


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_listed_command_is_there_and_has_help(name: str) -> None:
    command = importlib.import_module(f"padless.cli.{name}").command
    assert isinstance(command, click.Command)
    assert command.help


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_wrong_use_exits_with_2_and_suggests_the_command_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("pakc") == 2
    assert "no such command: pakc; did you mean pack?" in capsys.readouterr().err
    assert exit_code("pack") == 2
    assert exit_code("--version") == 0


@pytest.mark.parametrize(
    ("error", "code"), [(PadlessError("wrong"), 2), (ViolationError("broken"), 1), (KeyboardInterrupt(), 130)]
)
def test_errors_are_one_line_and_an_exit_code(error, code, monkeypatch, capsys) -> None:
    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(LazyGroup, "get_command", lambda self, ctx, name: failing)
    assert exit_code("verify") == code
    lines = capsys.readouterr().err.strip().splitlines()  # an interrupt first ends the line that ^C stands on
    assert len(lines) == 1
    assert lines[0].startswith("padless: ")


def test_a_bug_has_a_code_of_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def failing() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(LazyGroup, "get_command", lambda self, ctx, name: failing)
    assert exit_code("verify") == 70
    assert capsys.readouterr().err.endswith("padless: this is a bug in padless; the lines above tell where\n")
