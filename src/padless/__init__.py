"""padless removes padding from transformer training and proves that nothing else changed.

The public face is the names below, loaded when they are first used, so that `import padless` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers; at run time the names load when they are first used
    from padless.attention import varlen_attention
    from padless.auditing import audit
    from padless.corpus import TokenStore, pack
    from padless.lengths import LengthHistogram, lower_bound
    from padless.planning import Plan, plan
    from padless.rows import Batch, Rule, collate
    from padless.training import PackedDataset, packed_loss

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

__all__ = [
    "Batch",
    "LengthHistogram",
    "PackedDataset",
    "Plan",
    "Rule",
    "TokenStore",
    "audit",
    "collate",
    "lower_bound",
    "pack",
    "packed_loss",
    "plan",
    "varlen_attention",
]


def __getattr__(name: str) -> Any:
    if name not in _FACE:
        raise AttributeError(f"module 'padless' has no attribute {name!r}; its names are {', '.join(_FACE)}")
    value = getattr(importlib.import_module(_FACE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*_FACE, "__version__"]
