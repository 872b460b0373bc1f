"""The table in docs/transformers.md says what the models do now, for every architecture."""

import importlib.util
from pathlib import Path

import pytest

from padless.frameworks.tiny_models import ARCHITECTURES

ROOT = Path(__file__).resolve().parents[2]


def script():
    spec = importlib.util.spec_from_file_location("architectures", ROOT / "benchmarks" / "architectures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLE = script()


def printed() -> dict[str, list[str]]:
    text = (ROOT / "docs" / "transformers.md").read_text().split(TABLE.BEGIN)[1].split(TABLE.END)[0]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    return {cells[0]: cells[1:] for cells in lines[1:]}


def test_every_architecture_has_a_line():
    assert list(printed()) == list(ARCHITECTURES)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_with_padless_every_architecture_is_isolated_or_refused(name):
    cell, how = TABLE.with_padless(name)
    assert cell == "isolated" or cell.startswith("refused, because ")
    assert printed()[name][-2:] == [cell, how]


@pytest.mark.parametrize("name", ["llama", "opt", "mamba2"])
def test_what_is_said_of_the_shipped_models_holds(name):
    default, eager = printed()[name][:2]
    assert TABLE.as_shipped(name, "eager", use_cache=False) == eager
    assert TABLE.as_shipped(name, "eager") == default == "**leaks**"
