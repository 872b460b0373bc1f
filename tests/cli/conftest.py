"""Run the command line in this process, as `padless` would."""

from collections.abc import Callable

import pytest

from padless.cli.main import main


@pytest.fixture
def padless(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """`padless("pack", ...)` gives the exit code, standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, captured.out, captured.err

    return run
