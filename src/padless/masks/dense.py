"""Masks as whole tables. Two conventions, which corrupt in silence when swapped:

| function | value where q may see k | elsewhere | who takes it |
|---|---|---|---|
| `dense_mask`, `rectangular_mask` | True | False | `scaled_dot_product_attention`, `jax.nn.dot_product_attention` |
| `additive_mask` | 0 | -inf | anything that adds to scores |
| `inverted_mask` | False | True | `torch.nn.MultiheadAttention(attn_mask=)`, Transformer Engine |

They cost T x T entries: they are for checking, for short rows, and for kernels that know nothing better.
"""

from typing import Any

import numpy as np

from padless.masks.geometry import Tokens, attends, tokens_of, visibility_table
from padless.rows import Batch
from padless.rows.tensors import is_tensor, like


def dense_mask(batch: Batch) -> Any:
    """The rule as a table over all slots.

    Args:
        batch: Arrays or tensors.

    Returns:
        bool[T, T], queries first; True = attend (PyTorch's `scaled_dot_product_attention`). A padding slot attends
        nothing and nothing attends it. On the batch's device.

    Example:
        >>> from padless import collate
        >>> dense_mask(collate([[5, 6, 7], [8, 9]], capacity=6)).astype(int)
        array([[1, 0, 0, 0, 0, 0],
               [1, 1, 0, 0, 0, 0],
               [1, 1, 1, 0, 0, 0],
               [0, 0, 0, 1, 0, 0],
               [0, 0, 0, 1, 1, 0],
               [0, 0, 0, 0, 0, 0]])
    """
    tokens = [like(values, batch.input_ids) for values in tokens_of(batch)]
    return _table(batch, tokens)


def rectangular_mask(batch: Batch) -> Any:
    """`dense_mask` row by row, for models that take `[R, W]` ids: bool[R, 1, W, W], True = attend.

    Raises:
        PadlessError: When the rows are not of one width, which needs `collate(..., capacity=...)`.

    Example:
        >>> from padless import collate
        >>> rectangular_mask(collate([[[5, 6]], [[7], [8]]], capacity=2)).astype(int).tolist()
        [[[[1, 0], [1, 1]]], [[[1, 0], [0, 1]]]]
    """
    tokens = [batch.rectangle(like(values, batch.input_ids))[:, None] for values in tokens_of(batch)]
    return _table(batch, tokens)


def additive_mask(batch: Batch, dtype: Any = None) -> Any:
    """What to add to the scores.

    A padding slot attends itself, because a softmax over nothing is NaN and poisons gradients.

    Args:
        batch: Arrays or tensors.
        dtype: Floating dtype of numpy or torch, as the batch is; None is float32.

    Returns:
        float[T, T], queries first; 0 = attend, -inf elsewhere. On the batch's device.

    Example:
        >>> from padless import collate
        >>> additive_mask(collate([[5, 6]], capacity=3))
        array([[  0., -inf, -inf],
               [  0.,   0., -inf],
               [-inf, -inf,   0.]], dtype=float32)
    """
    masked = inverted_mask(batch)
    if is_tensor(masked):
        import torch

        zeros = masked.new_zeros(masked.shape, dtype=torch.float32 if dtype is None else dtype)
        return zeros.masked_fill_(masked, float("-inf"))
    out = np.zeros(masked.shape, np.float32 if dtype is None else dtype)
    out[masked] = -np.inf
    return out


def inverted_mask(batch: Batch) -> Any:
    """bool[T, T], queries first; True = MASKED, as `torch.nn.MultiheadAttention` and Transformer Engine have it.

    A padding slot attends itself, as in `additive_mask`.

    Example:
        >>> from padless import collate
        >>> inverted_mask(collate([[5, 6]], capacity=3)).astype(int)
        array([[0, 1, 1],
               [0, 0, 1],
               [1, 1, 0]])
    """
    masked = ~dense_mask(batch)
    diagonal = np.arange(batch.num_slots)
    masked[diagonal, diagonal] = False
    return masked


def _table(batch: Batch, tokens: list[Any]) -> Any:
    """`[..., n, n]` of numbers `[..., n]`."""
    queries, keys = Tokens(*(x[..., :, None] for x in tokens)), Tokens(*(x[..., None, :] for x in tokens))
    return attends(batch.rule, queries, keys, visibility_table(batch))
