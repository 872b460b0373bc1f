"""Scratch memory full of NaN, stand-ins for GPU kernels, and the comparison every test ends with."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture(autouse=True)
def nan_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that the attention room allocates and does not write shows up as NaN."""

    def poisoned(make):
        def made(*args, **kwargs):
            tensor = make(*args, **kwargs)
            return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

        return made

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned(torch.Tensor.new_empty))


@pytest.fixture(scope="session")
def stand_ins() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stand_ins", Path(__file__).parent / "stand_ins.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["stand_ins"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def default_costs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No test reads the calibration of the machine it runs on."""
    from padless.attention import cost

    where = tmp_path / "attention_cost.json"
    monkeypatch.setenv("PADLESS_ATTENTION_COST", str(where))
    cost.machine.cache_clear()
    yield where
    cost.machine.cache_clear()
