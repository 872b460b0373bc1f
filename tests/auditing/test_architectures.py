"""Over the architectures of Transformers: the audit's verdict is what brute force finds, as shipped and prepared."""

import pytest
import torch

from padless.auditing import audit
from padless.frameworks.tiny_models import ARCHITECTURES, tiny_model
from padless.frameworks.transformers import PackedCollator, prepare

from . import brute_force

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.filterwarnings("ignore")]

CHECKS = ("isolation", "parity")


def expected(model: torch.nn.Module) -> tuple[str, ...]:
    """The verdicts of isolation and parity by brute force."""
    vocabulary = model.config.get_text_config().vocab_size
    try:
        alone = brute_force.isolated(model, PackedCollator(), vocabulary)
        same = brute_force.parity(model, PackedCollator(), vocabulary)
    except (ValueError, RuntimeError, TypeError, AttributeError):
        return ("undecided", "undecided")
    return tuple("proven" if right else "violated" for right in (alone, same))


def found(model: torch.nn.Module) -> tuple[str, ...]:
    report = audit(model, PackedCollator(), checks=CHECKS, lengths=(9, 1, 14), shift=int(not masked(model)))
    return tuple(report[name].verdict for name in CHECKS)


def masked(model: torch.nn.Module) -> bool:
    return "MaskedLM" in type(model).__name__


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_as_shipped_without_cache(name: str) -> None:
    model = tiny_model(name)
    model.config.use_cache = model.config.get_text_config().use_cache = False
    assert found(model) == expected(model)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "qwen2_vl", "qwen3_next", "bert"])
def test_as_shipped(name: str) -> None:
    model = tiny_model(name)
    assert found(model) == expected(model)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "mixtral", "opt", "mamba2", "bamba", "bert"])
def test_prepared(name: str) -> None:
    model = tiny_model(name)
    prepare(model)
    assert found(model) == ("proven", "proven")
