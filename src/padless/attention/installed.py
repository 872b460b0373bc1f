"""Kernels of other packages: are they here, and is their signature the one this project was written against?"""

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
from collections.abc import Callable
from typing import Any

from padless.errors import PadlessError


def missing_on_cuda(module: str, package: str, *, capability: tuple[int, int] = (8, 0)) -> str | None:
    """Why a CUDA kernel of another package cannot be used here, or None."""
    import torch

    if not present(module):
        return f"{package} is not installed"
    if not torch.cuda.is_available():
        return "no CUDA device"
    if torch.cuda.get_device_capability() < capability:
        here = "{}.{}".format(*torch.cuda.get_device_capability())
        return f"the device has compute capability {here}, below {capability[0]}.{capability[1]}"
    return None


def function(module: str, name: str, arguments: tuple[str, ...]) -> Callable[..., Any]:
    """A kernel, once its signature is known to have every argument we pass.

    Raises:
        PadlessError: When the package does not have it, or it takes other arguments: a kernel that ignored a window
            or a boundary would give wrong numbers without a word.
    """
    imported = importlib.import_module(module)
    found = getattr(imported, name, None)
    if found is None:
        raise PadlessError(f"{module} ({version(module)}) has no {name}: install another version, or name a backend")
    check(found, f"{module}.{name}", version(module), arguments)
    return found


@functools.lru_cache(maxsize=64)
def check(found: Callable[..., Any], name: str, installed: str, arguments: tuple[str, ...]) -> None:
    """Raise unless a function takes every argument we pass; looked at once per function."""
    parameters = inspect.signature(found).parameters
    lacking = [argument for argument in arguments if argument not in parameters]
    if lacking:
        raise PadlessError(
            f"{name} ({installed}) does not take {', '.join(lacking)}: it takes {', '.join(parameters)}. Its meaning "
            "may have changed, so it is not called; install a version that has them, or name another backend"
        )


def version(module: str) -> str:
    """The installed version of the package that holds `module`."""
    root = module.partition(".")[0]
    try:
        return importlib.metadata.version(root.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(importlib.import_module(root), "__version__", "version unknown"))


def present(module: str) -> bool:
    """Whether a module can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        return False
