"""padless removes padding from transformer training and proves that nothing else changed.

The public face is the names below, loaded when they are first used, so that `import padless` costs nothing.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_FACE = {
    "plan": "padless.planning",
    "Plan": "padless.planning",
    "LengthHistogram": "padless.lengths",
    "lower_bound": "padless.lengths",
    "pack": "padless.corpus",
    "TokenStore": "padless.corpus",
    "PackedDataset": "padless.training",
    "collate": "padless.rows",
    "Batch": "padless.rows",
    "Rule": "padless.rows",
    "varlen_attention": "padless.attention",
    "packed_loss": "padless.training",
    "audit": "padless.auditing",
}

__all__ = list(_FACE)  # noqa: PLE0605 - the table above is the list


def __getattr__(name: str) -> Any:
    if name not in _FACE:
        raise AttributeError(f"module 'padless' has no attribute {name!r}; its names are {', '.join(_FACE)}")
    value = getattr(importlib.import_module(_FACE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*_FACE, "__version__"]
