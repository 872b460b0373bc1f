"""Packed rows over context-parallel ranks: who owns which slot, and a reference of attention and loss on the CPU."""

from typing import TYPE_CHECKING, Any

from padless.training.context_parallel.loss import sharded_loss
from padless.training.context_parallel.partition import contiguous, documents, zigzag
from padless.training.context_parallel.rolls import rolled
from padless.training.context_parallel.shard import Shard
from padless.training.context_parallel.spec import ContextParallel

if TYPE_CHECKING:
    from padless.training.context_parallel.attention import context_parallel_attention

__all__ = [
    "ContextParallel",
    "Shard",
    "context_parallel_attention",
    "contiguous",
    "documents",
    "rolled",
    "sharded_loss",
    "zigzag",
]


def __getattr__(name: str) -> Any:
    """Attention needs torch and the kernels; slicing does not."""
    if name == "context_parallel_attention":
        from padless.training.context_parallel.attention import context_parallel_attention

        return context_parallel_attention
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
