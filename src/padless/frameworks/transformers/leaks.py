"""Where in a model a leak shows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Run = Callable[[torch.Tensor], Any]


def first_leak(
    model: torch.nn.Module, run: Run, tokens: torch.Tensor, changed: torch.Tensor, watched: torch.Tensor, allowed: float
) -> str:
    """Name of the first module, in the order of computing, whose output moved where nothing had changed.

    Args:
        model: Its modules are watched.
        run: Calls the model on tokens.
        tokens: `[rows, length]`.
        changed: The same with one segment of each row changed.
        watched: Bool `[rows, length]`, True where nothing was changed.
        allowed: Movement that is rounding, relative to the largest output.
    """
    before, after = (_outputs(model, run, each) for each in (tokens, changed))
    for name, output in before.items():
        comparable = name in after and after[name].shape == output.shape
        if comparable and not largest(after[name] - output, watched) <= allowed * largest(output, watched):
            return _called(model, name)
    return "a step between its layers"


def leaking_part(model: torch.nn.Module, run: Callable[[], Any], changed: torch.Tensor) -> str | None:
    """Name of the first part without experts that feels another segment, or None.

    Every such part is run twice on the spot: as the model calls it, and with its inputs changed in one segment. Its
    output in the other must be the same bits, whatever rounding the experts before it have done.

    Args:
        model: A model with experts.
        run: Calls the model once.
        changed: Bool `[rows, length]`, True in the segment to change.
    """
    found: list[str] = []

    def change(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(change, value))
        per_token = isinstance(value, torch.Tensor) and value.is_floating_point() and value.shape[:2] == changed.shape
        return torch.where(changed[..., None], value + 1, value) if per_token and value.ndim == 3 else value

    def watch(name: str, module: torch.nn.Module) -> Any:
        def hook(_module: Any, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
            states = _states(output, changed.shape)
            if states is not None and not found:
                again = _states(
                    module.forward(*change(args), **{k: change(v) for k, v in kwargs.items()}), changed.shape
                )
                if again is None or not torch.equal(again[~changed], states[~changed]):
                    found.append(_called(model, name))

        return module.register_forward_hook(hook, with_kwargs=True)

    with _hooks(watch(name, module) for name, module in _parts_without_experts(model)):
        run()
    return found[0] if found else None


def has_experts(named: tuple[str, torch.nn.Module]) -> bool:
    """Whether a named module is, or holds, experts."""
    name, module = named
    return "expert" in name or any("expert" in inner for inner, _ in module.named_modules())


def largest(values: torch.Tensor, where: torch.Tensor) -> float:
    """Largest absolute value under a mask; NaN if there is one."""
    return float(values[where].abs().max())


def _parts_without_experts(model: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """The largest modules that hold no experts."""
    free = [(name, module) for name, module in model.named_modules() if name and not has_experts((name, module))]
    names = {name for name, _ in free}
    return [(name, module) for name, module in free if name.rpartition(".")[0] not in names]


def _outputs(model: torch.nn.Module, run: Run, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    outputs: dict[str, torch.Tensor] = {}

    def keep(name: str, module: torch.nn.Module) -> Any:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            states = _states(output, tokens.shape)
            if states is not None:
                outputs.setdefault(name, states.detach().clone())

        return module.register_forward_hook(hook)

    with _hooks(keep(name, module) for name, module in model.named_modules() if name):
        run(tokens)
    return outputs


@contextmanager
def _hooks(handles: Iterator[Any]) -> Iterator[None]:
    registered = list(handles)
    try:
        yield
    finally:
        for handle in registered:
            handle.remove()


def _states(output: Any, shape: torch.Size) -> torch.Tensor | None:
    """What a module gives per token, `[rows, length, ...]`, if it does."""
    first = output[0] if isinstance(output, tuple) and output else output
    return first if isinstance(first, torch.Tensor) and first.shape[:2] == shape else None


def _called(model: torch.nn.Module, name: str) -> str:
    return f"{name} ({type(model.get_submodule(name)).__name__})"
