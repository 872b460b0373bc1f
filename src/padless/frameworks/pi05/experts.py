"""Both experts over packed rows: gather the real tokens, run the model's own layers on them, put them back.

The model's own layers see one row `[1, P + S]`. Three things in them depend on what a row is, and are told:

- attention: `attention_mask` is the `PolicyRows`, and `eager_attention_forward` of the module that the layers call it
  from hands such a mask to `policy_attention` (any other mask goes to the original, unchanged);
- positions: those of each sample, not of the row;
- adaRMS: one condition per token. openpi's norm takes one per sample only, so it is shown the row as a flat batch.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from padless.errors import PadlessError
from padless.frameworks.pi05.attention import policy_attention
from padless.frameworks.pi05.rows import PolicyRows

_MARK = "_padless_takes_rows"


def run_packed(
    forward: Callable[..., Any],
    rows: PolicyRows,
    *,
    prefix: torch.Tensor,
    suffix: torch.Tensor,
    conditions: list[torch.Tensor | None],
    **more: Any,
) -> tuple[list[torch.Tensor], Any]:
    """The experts' own `forward` on real tokens only.

    Args:
        forward: `paligemma_with_expert.forward`.
        rows: Which tokens are real.
        prefix: `[B, Lp, width]`, padded.
        suffix: `[B, Ls, expert width]`.
        conditions: Of the two experts: None, `[B, C]`, or `[B, L, C]` with one per token.
        more: Handed on.

    Returns:
        What `forward` returns, prefix and suffix padded as they came, zeros on padding.
    """
    device = prefix.device
    index = [torch.from_numpy(i).to(device) for i in (rows.prefix_index, rows.suffix_index)]
    positions = torch.from_numpy(rows.positions).to(device)
    inputs = [x.flatten(0, 1).index_select(0, i)[None] for x, i in zip((prefix, suffix), index, strict=True)]
    shapes = (prefix.shape[:2], suffix.shape[:2])
    told = [_per_token(c, i, shape) for c, i, shape in zip(conditions, index, shapes, strict=True)]
    outs, cache = forward(
        attention_mask=rows, position_ids=positions[None], inputs_embeds=inputs, adarms_cond=told, **more
    )
    padded = [
        out.new_zeros(shape.numel(), out.shape[-1]).index_copy(0, i, out[0]).unflatten(0, shape)
        for out, i, shape in zip(outs, index, shapes, strict=True)
    ]
    return padded, cache


def _per_token(condition: torch.Tensor | None, index: torch.Tensor, shape: torch.Size) -> torch.Tensor | None:
    """`[1, tokens, C]`: of each token its sample's condition, or its own."""
    if condition is None:
        return None
    flat = condition.flatten(0, 1) if condition.ndim == 3 else condition
    return flat.index_select(0, index if condition.ndim == 3 else index // shape[1])[None]


def teach_attention(experts: nn.Module) -> None:
    """Let the attention function that this model's layers call take `PolicyRows` for a mask.

    It is looked up where openpi and LeRobot look it up at every call: `modeling_gemma`, a global of their own module.
    The function there is replaced once per process, and differs from the original for such masks only.

    Raises:
        PadlessError: When the experts neither know rows themselves nor call attention from there.
    """
    if getattr(experts, "takes_rows", False):
        return
    home = getattr(sys.modules[type(experts).__module__], "modeling_gemma", None)
    original = getattr(home, "eager_attention_forward", None)
    if original is None:
        raise PadlessError(
            f"{type(experts).__name__} calls no modeling_gemma.eager_attention_forward from its own module: its "
            "attention cannot be told about packed rows, and would let samples see each other; use trim(model), which "
            "needs no packed attention"
        )
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def attention(module, query, key, value, attention_mask, scaling, *rest, **more):
        if not isinstance(attention_mask, PolicyRows):
            return original(module, query, key, value, attention_mask, scaling, *rest, **more)
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        return policy_attention(q, k, v, attention_mask, scale=scaling)[None], None

    setattr(attention, _MARK, True)
    home.eager_attention_forward = attention  # type: ignore[union-attr]


def flat_norms(experts: nn.Module) -> list[tuple[nn.Module, Callable[..., Any]]]:
    """For each conditioned norm, a `forward` that takes one condition per token of a single row.

    Both libraries' norms are right for `x [tokens, width]` beside `cond [tokens, C]`; for three axes openpi's assumes
    one condition per sample.
    """
    return [(m, _flat(m.forward)) for m in experts.modules() if getattr(m, "cond_dim", None) is not None]


def _flat(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def norm(x: torch.Tensor, cond: torch.Tensor | None = None) -> Any:
        if cond is None or cond.ndim < 3 or x.shape[0] != 1:
            return forward(x, cond=cond)
        normed, gate = forward(x[0], cond=cond[0])
        return normed[None], gate[None]

    return norm
