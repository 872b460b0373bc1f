"""Between numpy and torch: zero copies where possible, torch imported only when somebody has it."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from padless.errors import require


def is_tensor(x: Any) -> bool:
    """Whether `x` is a torch tensor, told without importing torch."""
    return type(x).__module__.partition(".")[0] == "torch" and hasattr(x, "device")


def host(x: Any) -> Any:
    """`x` as a numpy array on the host; anything that is no tensor comes back as it is."""
    return x.detach().cpu().numpy() if is_tensor(x) else x


def like(array: np.ndarray, model: Any) -> Any:
    """`array` as whatever `model` is: numpy, or a tensor on the same device."""
    return to_torch(array, model.device) if is_tensor(model) else array


def to_torch(x: Any, device: Any = None, non_blocking: bool = False) -> Any:
    """`x` as a tensor, sharing memory with a writable array when `device` is None or the CPU.

    A read-only array (memory-mapped) is copied: torch has no read-only tensors, and writing to one would crash.
    """
    require("torch", extra="torch", feature="Batch.torch()")
    import torch

    if not is_tensor(x):
        x = torch.from_numpy(x if x.flags.writeable else x.copy())
    return x if device is None else x.to(device, non_blocking=non_blocking)


def shift_left(x: Any, fill: float) -> Any:
    """`out[i] = x[i + 1]`, and `fill` at the end."""
    if is_tensor(x):
        out = x.roll(-1)
    else:
        out = np.empty_like(x)
        out[:-1] = x[1:]
    out[-1:] = fill
    return out


def convert(batch: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of the dataclass `batch` with `change` applied to every array in it, `media` included."""

    def changed(value: Any) -> Any:
        if isinstance(value, np.ndarray) or is_tensor(value):
            return change(value)
        if isinstance(value, Mapping):
            return {key: changed(inner) for key, inner in value.items()}
        return value

    fields = {f.name: changed(getattr(batch, f.name)) for f in dataclasses.fields(batch)}
    converted = type(batch)(**fields)
    # Carried over, because working these out again from tensors on a device would wait for the device.
    converted.__dict__.update({"num_tokens": batch.num_tokens, "segment_ids": changed(batch.segment_ids)})
    return converted
