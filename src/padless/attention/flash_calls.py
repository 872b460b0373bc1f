"""What the flash-attn family shares: fixed-length views, and log-sum-exp in one layout."""

import torch

from padless.attention.problem import Problem


def fixed_view(p: Problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`[n, length, heads, size]` views of equal segments."""
    n = len(p.segments)
    return p.q.unflatten(0, (n, -1)), p.k.unflatten(0, (n, -1)), p.v.unflatten(0, (n, -1))


def fixed_lse(lse: torch.Tensor | None) -> torch.Tensor | None:
    """`[n, H, length]` to `[T, H]`."""
    return None if lse is None else lse.detach().transpose(1, 2).flatten(0, 1)


def varlen_lse(lse: torch.Tensor | None) -> torch.Tensor | None:
    """`[H, T]` to `[T, H]`."""
    return None if lse is None else lse.detach().T


def repeated_heads(p: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values with one head per query head, for kernels without grouped-query heads."""
    group = p.q.shape[1] // p.k.shape[1]
    if group == 1:
        return p.k, p.v  # repeating once would copy both
    return p.k.repeat_interleave(group, dim=1), p.v.repeat_interleave(group, dim=1)
