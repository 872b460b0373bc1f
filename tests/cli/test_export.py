"""`padless export` at the command line."""

import json
from pathlib import Path

import pytest

from padless import TokenStore, plan
from padless.cli.export import FORMATS, command
from padless.cli.main import main
from padless.frameworks import export


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    """Two plans; one sample of one token, one that a row of 4 must split."""
    store = TokenStore.write(tmp_path / "out", [[1, 2, 3], [4], [5, 6, 7, 8, 9]], vocab_size=10)
    store.add_plan(plan(store.lengths, 8))
    return store


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def test_the_command_offers_what_the_library_writes() -> None:
    assert set(FORMATS) == set(export.FORMATS)
    assert command.help


@pytest.mark.parametrize("to", FORMATS)
def test_every_format_is_written_beside_the_store(store: TokenStore, to: str, capsys: pytest.CaptureFixture) -> None:
    assert run("export", store.path, "--to", to) == 0
    printed = capsys.readouterr().out
    assert (store.path.with_name(f"out-{to}") / "export.json").exists()
    assert f"out-{to}: 2 rows, 3 segments, 9 tokens, 6 targets as {to}" in printed
    assert ("left out: 1 segments of one token" in printed) == (to == "nemo")


def test_a_store_may_be_named_by_a_dot(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store.path)
    assert run("export", ".", "--to", "jsonl", "--quiet") == 0
    assert (store.path.with_name("out-jsonl") / "export.json").exists()


def test_what_a_split_costs_is_shown(store: TokenStore, capsys: pytest.CaptureFixture) -> None:
    store.add_plan(plan(store.lengths, 4, oversize="split"))
    assert run("export", store.path, "--to", "jsonl", "--capacity", 4, "-o", store.path.with_name("four")) == 0
    assert "not trained on: 1 tokens that begin a piece of a split sample" in capsys.readouterr().out


def test_json_is_one_object_and_quiet_is_silent(store: TokenStore, capsys: pytest.CaptureFixture) -> None:
    assert run("export", store.path, "--to", "trl", "--json") == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 9
    assert run("export", store.path, "--to", "arrow", "--quiet") == 0
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_wrong_use_is_one_line_and_exit_code_2(store: TokenStore, capsys: pytest.CaptureFixture) -> None:
    assert run("export", store.path, "--to", "trl", "-o", store.path) == 2
    assert "exists; an export takes a new folder" in capsys.readouterr().err
    assert run("export", store.path, "--to", "csv") == 2
    assert run("export", store.path.with_name("nowhere"), "--to", "trl") == 2
    assert "does not exist" in capsys.readouterr().err
