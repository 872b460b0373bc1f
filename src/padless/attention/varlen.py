"""`varlen_attention`: isolated attention for packed tokens, on the best kernel there is."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from padless.attention import autocast, select
from padless.attention.problem import Problem, check_tensors
from padless.attention.segments import Segments
from padless.attention.steps import Step, steps_of
from padless.errors import PadlessError
from padless.rows import Batch

_F = TypeVar("_F", bound=Callable[..., Any])


def _untraced(function: _F) -> _F:
    """Boundaries are host numbers that change with every batch: compiled code must not guard them."""
    return torch.compiler.disable(function)  # pyright: ignore[reportReturnType] - typed for its other uses too


@_untraced
def varlen_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    batch: Batch | Segments | None = None,
    *,
    cu_seqlens: Any = None,
    cu_seqlens_k: Any = None,
    causal: bool | None = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    deterministic: bool = False,
    return_lse: bool = False,
    backend: str = "auto",
) -> Any:
    """Attention in which a token sees only its own segment.

    Args:
        q: Queries `[Tq, Hq, D]`; float64, float32, float16 or bfloat16; the last dimension contiguous, others
            as they are.
        k: Keys `[Tk, Hkv, D]`; `Hq` is a multiple of `Hkv` (grouped-query heads).
        v: Values `[Tk, Hkv, Dv]`.
        batch: A `Batch` (its boundaries and its rule are used) or `Segments`. Hand the same object to every layer:
            plans and device copies are kept with it, and nothing waits for the device.
        cu_seqlens: Boundaries by hand, instead of a batch: prefix sums of the query lengths, `[S + 1]`.
        cu_seqlens_k: The same for keys when they differ; the causal mask is then aligned to the bottom right.
        causal: Whether a token sees only itself and what comes before it; by default True without a batch, and the
            batch's rule with one.
        window: `(left, right)` distances still visible, as in flash-attn; None is no limit. Causal sets right to 0.
            A model's "sliding window of W tokens" is `(W - 1, 0)`.
        scale: Multiplies the scores; `1 / sqrt(D)` by default.
        softcap: `softcap * tanh(score / softcap)` replaces each score; 0 is off (Gemma 2).
        sinks: One extra logit per query head that takes part in each softmax and has no value; `[Hq]` (GPT-OSS).
        dropout_p: Probability of dropping an attention weight; the default 0.0 is right outside training.
        deterministic: Ask for gradients with the same bits in every run.
        return_lse: Also return the log of each softmax's denominator (sink included), `[Tq, Hq]`, float32 or wider;
            no gradient flows through it.
        backend: `"auto"`, or a name from `padless backends`.

    Returns:
        `[Tq, Hq, Dv]` in q's dtype, or `(out, lse)`. Under autocast q, k and v are first cast to its dtype, as for
        PyTorch's own attention. Padding positions are 0 (lse: -inf) and get zero gradients, and
        so do queries that see no key.

    Raises:
        PadlessError: For inputs that do not fit together, or when no backend can do what is asked: the message says
            which requirement failed in which backend.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 8, 4, 16).unbind()
        >>> out = varlen_attention(q, k, v, cu_seqlens=[0, 3, 8])
        >>> alone = varlen_attention(q[3:], k[3:], v[3:], cu_seqlens=[0, 5])
        >>> torch.allclose(out[3:], alone, atol=1e-6)
        True
    """
    steps = _steps(batch, cu_seqlens, cu_seqlens_k, causal, window)
    options = {
        "scale": scale,
        "softcap": softcap,
        "sinks": sinks,
        "dropout_p": dropout_p,
        "deterministic": deterministic,
        "return_lse": return_lse,
    }
    q, k, v = map(autocast.cast, (q, k, v))
    problems = [_problem(step, q, k, v, options) for step in steps]
    with autocast.off(q.device):
        found = [select.run(p, backend) for p in problems]
    out, lse = found[0] if len(steps) == 1 and steps[0].q_index is None else _put_together(steps, found, q)
    return (out, lse) if return_lse else out


def choose(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    batch: Batch | Segments | None = None,
    *,
    cu_seqlens: Any = None,
    backend: str = "auto",
    **options: Any,
) -> select.Choice:
    """Which backend and which path `varlen_attention` would take for the same arguments, and why.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 8, 4, 16).unbind()
        >>> choose(q, k, v, cu_seqlens=[0, 4, 8]).path
        'fixed'
        >>> print(choose(q, k, v, cu_seqlens=[0, 3, 8]).backend)
        segmented
    """
    boundaries = (options.pop(name, None) for name in ("cu_seqlens_k", "causal", "window"))
    [step, *_] = _steps(batch, cu_seqlens, *boundaries)
    q, k, v = map(autocast.cast, (q, k, v))
    return select.choose(_problem(step, q, k, v, {"scale": None, **options}), backend)


def _steps(
    batch: Batch | Segments | None,
    cu_seqlens: Any,
    cu_seqlens_k: Any,
    causal: bool | None,
    window: tuple[int | None, int | None] | None,
) -> tuple[Step, ...]:
    """The plain calls that were asked for, from the one description of boundaries that was given."""
    if (batch is None) == (cu_seqlens is None):
        raise PadlessError("give the boundaries once: a batch (or Segments), or cu_seqlens")
    if isinstance(batch, Batch):
        if causal is not None or window is not None or cu_seqlens_k is not None:
            raise PadlessError(
                f"causal, window or cu_seqlens_k was given beside a batch, whose own rule is {batch.rule}: one of them "
                "would be ignored; put it into the batch's rule, or give Segments instead of the batch"
            )
        return steps_of(batch)
    if batch is None:
        segments = Segments.of(cu_seqlens, cu_seqlens_k)
    elif isinstance(batch, Segments) and cu_seqlens_k is None:
        segments = batch
    else:
        raise PadlessError(
            f"cannot read boundaries from a {type(batch).__name__}"
            f"{' and cu_seqlens_k' if cu_seqlens_k is not None else ''}: give a Batch or Segments alone, or offsets"
        )
    left, right = _window(window)
    return (
        Step(segments=segments, q_index=None, k_index=None, left=left, right=0 if causal in (None, True) else right),
    )


def _window(window: Any) -> tuple[int | None, int | None]:
    if window is None:
        return None, None
    if not isinstance(window, tuple | list) or len(window) != 2:
        raise PadlessError(f"window is {window!r}: give (left, right), with None for no limit")
    return tuple(window)


def _problem(step: Step, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Problem:
    check_tensors(q, k, v)
    options = options | {"scale": 1.0 / math.sqrt(q.shape[2]) if options["scale"] is None else options["scale"]}
    taken = {"q": step.take("q", q), "k": step.take("k", k), "v": step.take("k", v)}
    return Problem(**taken, segments=step.segments, left=step.left, right=step.right, **options)


def _put_together(
    steps: tuple[Step, ...], found: list[tuple[torch.Tensor, torch.Tensor | None]], q: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Every query is in one call; what is in none is padding."""
    index = torch.cat([step.index("q", q.device) for step in steps])
    outs = torch.cat([out for out, _ in found])
    out = outs.new_zeros(q.shape[0], *outs.shape[1:]).index_copy(0, index, outs)
    if found[0][1] is None:
        return out, None
    lses = torch.cat([lse for _, lse in found if lse is not None])
    return out, lses.new_full((q.shape[0], lses.shape[1]), -math.inf).index_copy(0, index, lses)
