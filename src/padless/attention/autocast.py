"""Under autocast, attention does what PyTorch's own does: q, k and v are cast, and the rest is computed as it is."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def cast(x: Any) -> Any:
    """`x` in the type of the autocast around the call, if there is one; float64 stays, as in PyTorch's attention.

    Models count on it: after their rotary embedding, queries and keys are float32 again beside half-precision values.
    """
    if not isinstance(x, torch.Tensor) or x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return x
    return x.to(torch.get_autocast_dtype(x.device.type)) if _enabled(x.device.type) else x


def off(device: torch.device) -> AbstractContextManager[Any]:
    """No autocast inside: kernels keep their float32 parts, and backward recomputes what forward computed."""
    return torch.autocast(device.type, enabled=False) if _enabled(device.type) else nullcontext()


def _enabled(device_type: str) -> bool:
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)
