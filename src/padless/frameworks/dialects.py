"""Every dialect by name: one function from a `Batch` to what that framework reads."""

import importlib
from collections.abc import Callable
from typing import Any

from padless.errors import PadlessError
from padless.rows import Batch

DIALECTS = {
    "plain": "padless.frameworks.plain:plain_batch",
    "transformers": "padless.frameworks.transformers_batch:transformers_batch",
    "trl": "padless.frameworks.trl:trl_table",
    "megatron": "padless.frameworks.megatron:megatron_batch",
    "nemo": "padless.frameworks.nemo:nemo_table",
    "jax": "padless.frameworks.jax:jax_batch",
}


def dialect(name: str) -> Callable[[Batch], Any]:
    """The function of a dialect, e.g. as the `collate_fn` of a loader over a `PackedDataset`.

    Args:
        name: A key of `DIALECTS`.

    Raises:
        PadlessError: When there is no such dialect.

    Example:
        >>> from padless import collate
        >>> sorted(dialect("jax")(collate([[5, 6, 7]], capacity=4)))
        ['inputs', 'inputs_position', 'inputs_segmentation', 'targets', 'targets_position', 'targets_segmentation']
    """
    if name not in DIALECTS:
        raise PadlessError(f"there is no dialect {name!r}; there are {', '.join(DIALECTS)}")
    module, function = DIALECTS[name].split(":")
    return getattr(importlib.import_module(module), function)
