"""Targets: what is trained where, read from the loss itself.

The gradient of cross entropy by the logits of one position is softmax minus one-hot: positions with a gradient are
those that are trained, and the only negative entry is the token they are trained on. So this sees what the loss does,
whatever labels say and whoever shifts them.
"""

from collections import Counter

import numpy as np
import torch

from padless.auditing.context import Context
from padless.auditing.layout import Layout
from padless.auditing.report import CheckResult
from padless.auditing.samples import target_mask
from padless.auditing.subject import FailedError, NoLossError, blamed_on, tokens_of

PADDING = 11  # slots of padding to ask for, where the collator can pad

# From the most telling to the least; one fault often brings others with it.
ORDER = (
    "double-shift", "no-shift", "cross-boundary-label", "padding-in-loss", "prompt-in-loss", "lost-eod", "tokens-lost",
    "targets-lost", "wrong-targets",
)  # fmt: skip


def check(context: Context) -> CheckResult:
    """Read the trained positions and tokens from the loss, and compare with the samples' labels."""
    subject = context.reference
    options = {"capacity": context.layout.slots + PADDING} if subject.pads else {}
    inputs = subject.collate(context.samples, **options)
    layout = subject.layout(inputs, context.samples)
    expected = expected_targets(context, layout)
    try:
        trained, weights = trained_targets(context, inputs, layout, len(expected))
    except NoLossError as error:
        return CheckResult(name="targets", verdict="not-applicable", finding=str(error))
    row = tokens_of(inputs).reshape(-1).cpu().numpy()
    faults = classify(context, layout, row, expected, trained)
    details = {
        "expected": len(expected),
        "trained": len(trained),
        "faults": dict(faults),
        "weights": [min(weights, default=0.0), max(weights, default=0.0)],
    }
    if not faults and not trained:
        return CheckResult(name="targets", verdict="undecided", finding="the loss trains nothing", details=details)
    if faults:
        mechanism = next(name for name in ORDER if name in faults)
        listed = ", ".join(f"{count} x {name}" for name, count in faults.most_common())
        return CheckResult(
            name="targets",
            verdict="violated",
            mechanism=mechanism,
            measured=float(sum(faults.values())),
            tolerance=0.0,
            finding=f"{len(trained)} positions are trained, {len(expected)} should be: {listed}",
            details=details,
        )
    notes = []
    if context.eod is not None:
        notes.append("end-of-document tokens are targets")
    if options:
        notes.append(f"{int(layout.padding.sum())} padded slots stay out of the loss")
    if weights and max(weights) > 1.01 * min(weights):
        notes.append(f"targets weigh unequally: {min(weights):.3g} to {max(weights):.3g}")
    return CheckResult(
        name="targets",
        verdict="proven",
        measured=0.0,
        tolerance=0.0,
        finding=f"all {len(expected)} targets are trained at their place, and nothing else",
        notes=tuple(notes),
        details=details,
    )


def expected_targets(context: Context, layout: Layout) -> dict[int, int]:
    """Slot -> token id that it should predict."""
    targets = {}
    for sample, (start, _) in zip(context.samples, layout.spans, strict=True):
        for j in np.flatnonzero(target_mask(sample, shift=context.shift)):
            targets[start + int(j) - context.shift] = int(sample["input_ids"][j])
    return targets


def trained_targets(context: Context, inputs, layout: Layout, num_targets: int) -> tuple[dict[int, int], list[float]]:
    """Slot -> token id that it does predict, and the weight of each."""
    subject = context.reference
    with torch.enable_grad():
        outputs = subject.run_counting(inputs, num_targets)
        raw = subject.logits_of(outputs)
        logits = subject.logits(outputs, layout.slots)
        loss = subject.loss(outputs, inputs, num_targets)
        if not loss.requires_grad or not raw.requires_grad:
            raise FailedError("the loss has no graph, so it cannot be read what it trains")
        with blamed_on("the backward pass"):
            (grad,) = torch.autograd.grad(loss.sum(), raw, allow_unused=True)
    if grad is None:
        raise FailedError("the loss does not pass through the logits that the model returns (a fused loss?)")
    grad = grad.reshape(layout.slots, -1)
    if not bool(torch.isfinite(grad).all()):
        raise FailedError("the loss has gradients that are not finite")
    slots = torch.nonzero(grad.abs().amax(dim=1) > 0).flatten()
    tokens = grad[slots].argmin(dim=1)
    chance = torch.softmax(logits.detach()[slots].double(), dim=1).gather(1, tokens[:, None])[:, 0]
    weights = -grad[slots].double().gather(1, tokens[:, None])[:, 0] / (1 - chance).clamp(min=1e-12)
    trained = dict(zip(slots.tolist(), tokens.tolist(), strict=True))
    return trained, weights.tolist()


def classify(
    context: Context, layout: Layout, row: np.ndarray, expected: dict[int, int], trained: dict[int, int]
) -> Counter:
    """Count each kind of fault."""
    faults: Counter = Counter()
    ids = layout.segment_ids
    if any(layout.lost):
        whose = [s["input_ids"][-1] for s, lost in zip(context.samples, layout.lost, strict=True) if lost]
        faults["lost-eod" if context.eod in whose else "tokens-lost"] += len(whose)
    for slot, token in trained.items():
        if expected.get(slot) != token:
            faults[_wrong(context, ids, row, slot, token)] += 1
    for slot, token in expected.items():
        if slot not in trained and not (slot + context.shift >= len(ids) or ids[slot + context.shift] != ids[slot]):
            faults["lost-eod" if token == context.eod else "targets-lost"] += 1
    # One shift too many or too few shows at most positions; what it does at the edges has the same cause.
    for whole in ("double-shift", "no-shift"):
        if faults[whole] > len(trained) // 2:
            return Counter({whole: faults[whole]})
    return Counter({name: count for name, count in faults.items() if count})


def _wrong(context: Context, ids: np.ndarray, row: np.ndarray, slot: int, token: int) -> str:
    """The name of one trained position that should be trained on something else, or not at all."""
    target = slot + context.shift

    def stands_at(place: int) -> bool:
        return 0 <= place < len(row) and int(row[place]) == token

    if ids[slot] == 0 or target >= len(ids) or ids[target] == 0:
        return "padding-in-loss"
    if stands_at(target):
        return "cross-boundary-label" if ids[target] != ids[slot] else "prompt-in-loss"
    if context.shift and stands_at(target + 1):
        return "double-shift"
    if stands_at(slot):
        return "no-shift"
    return "cross-boundary-label" if ids[target] != ids[slot] else "wrong-targets"
