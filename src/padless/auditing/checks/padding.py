"""Padding inertness: what padded slots hold, and how many there are, must not matter to anything real."""

from typing import Any

import numpy as np
import torch

from padless.auditing.context import Context
from padless.auditing.layout import Layout
from padless.auditing.noise import REPETITION
from padless.auditing.objective import targets_of
from padless.auditing.report import CheckResult
from padless.auditing.subject import NoLossError, Subject, tokens_of, with_entries

AMOUNTS = (7, 19)


def check(context: Context) -> CheckResult:
    """Garbage in padded slots, then other amounts of padding."""
    subject = context.reference
    tight = context.layout.slots - int(context.layout.padding.sum())
    options = {"capacity": tight + AMOUNTS[0]} if subject.pads else {}
    inputs = subject.collate(context.samples, **options)
    layout = subject.layout(inputs, context.samples)
    if not layout.padding.any():
        return _result("not-applicable", "this collator makes no padding")
    found = _garbage(context, subject, inputs, layout)
    if found is not None:
        return found
    notes = ["padded slots held random tokens: nothing real moved by a bit"]
    if not subject.pads:
        notes.append("the collator takes no `capacity`, so other amounts of padding were not tried")
        return _result("proven", f"{int(layout.padding.sum())} padded slots are inert", measured=0.0, tolerance=0.0)
    return _amounts(context, subject, inputs, layout, tight, notes)


def _garbage(context: Context, subject: Subject, inputs: Any, layout: Layout) -> CheckResult | None:
    """Replace the tokens of padded slots; None when nothing real moves."""
    rng = np.random.default_rng((context.seed, 7))
    padding = torch.from_numpy(layout.padding)
    base, loss, aux = _outputs(context, subject, inputs, layout)
    again, loss_again, _ = _outputs(context, subject, inputs, layout)
    noise = REPETITION * float((again - base)[~padding].abs().max())
    loss_noise = REPETITION * abs(loss - loss_again) if loss is not None else 0.0
    for _ in range(2):
        ids = tokens_of(inputs).reshape(-1).clone()
        garbage = torch.from_numpy(rng.choice(context.ordinary, int(padding.sum())))
        ids[padding.to(ids.device)] = garbage.to(ids)
        dirty = with_entries(inputs, {"input_ids": ids.reshape(tokens_of(inputs).shape)})
        logits, dirty_loss, dirty_aux = _outputs(context, subject, dirty, layout)
        moved = float((logits - base)[~padding].abs().max())
        # Experts get other numbers of tokens, so products of other shapes: rounding, not a leak.
        if moved > max(noise, context.noise.tolerance if moved < context.noise.tolerance else 0.0):
            return _result(
                "violated",
                f"other tokens in padded slots move real logits by {moved:.3g}",
                mechanism="attends-padding",
                measured=moved,
                tolerance=noise,
            )
        if loss is not None and abs(dirty_loss - loss) > loss_noise + context.noise.growth * abs(loss):
            by_aux = aux is not None and dirty_aux is not None and aux != dirty_aux
            return _result(
                "violated",
                f"other tokens in padded slots move the loss by {abs(dirty_loss - loss):.3g}; real logits stand still",
                mechanism="aux-loss-counts-padding" if by_aux else "loss-counts-padding",
                measured=abs(dirty_loss - loss),
                tolerance=loss_noise,
            )
    return None


def _amounts(context: Context, subject: Subject, inputs: Any, layout: Layout, tight: int, notes: list) -> CheckResult:
    base, loss, _ = _outputs(context, subject, inputs, layout)
    other = subject.collate(context.samples, capacity=tight + AMOUNTS[1])
    wide = subject.layout(other, context.samples)
    logits, other_loss, _ = _outputs(context, subject, other, wide)
    moved = 0.0
    for a, b in zip(layout.spans, wide.spans, strict=True):
        moved = max(moved, float((base[a[0] : a[1]] - logits[b[0] : b[1]]).abs().max()))
    tolerance = context.noise.tolerance
    if moved > tolerance:
        return _result(
            "violated",
            f"{AMOUNTS[1]} padded slots instead of {AMOUNTS[0]} move real logits by {moved:.3g}",
            mechanism="padding-amount-matters",
            measured=moved,
            tolerance=tolerance,
        )
    if loss is not None and abs(loss - other_loss) > context.noise.growth * max(abs(loss), context.noise.sensitivity):
        return _result(
            "violated",
            f"{AMOUNTS[1]} padded slots instead of {AMOUNTS[0]} move the loss by {abs(loss - other_loss):.3g}",
            mechanism="loss-counts-padding",
            measured=abs(loss - other_loss),
            tolerance=context.noise.growth,
        )
    return _result(
        "proven",
        f"{AMOUNTS[0]} or {AMOUNTS[1]} padded slots, whatever they hold: real outputs stay",
        measured=moved,
        tolerance=tolerance,
        notes=tuple(notes),
    )


def _outputs(context: Context, subject: Subject, inputs: Any, layout: Layout) -> tuple[torch.Tensor, Any, Any]:
    """Logits, loss and auxiliary loss (None where there is none)."""
    total = targets_of(context, range(len(context.samples)))
    with torch.no_grad():
        outputs = subject.run_counting(inputs, total)
        logits = subject.logits(outputs, layout.slots).detach().clone()
        try:
            loss = float(subject.loss(outputs, inputs, total))
        except NoLossError:
            loss = None
    aux = getattr(outputs, "aux_loss", None)
    return logits, loss, None if aux is None else float(aux)


def _result(verdict, finding: str, **more) -> CheckResult:
    return CheckResult(name="padding", verdict=verdict, finding=finding, **more)
