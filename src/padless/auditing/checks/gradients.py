"""Isolation by gradient: a segment's outputs must not depend on the embeddings of any other segment.

Sees what a perturbation cannot: paths that no discrete change of tokens happens to move, and the backward pass itself.
"""

import numpy as np
import torch

from padless.auditing.context import Context
from padless.auditing.naming import name_leak
from padless.auditing.noise import replaced_output
from padless.auditing.recorder import as_slots
from padless.auditing.report import CheckResult
from padless.auditing.scan import scan
from padless.auditing.subject import blamed_on


def check(context: Context) -> CheckResult:
    """Backpropagate a random projection of each segment's logits to the embeddings of the row."""
    subject, inputs, layout = context.reference, context.inputs, context.layout
    if len(context.samples) < 2:
        return CheckResult(name="gradients", verdict="not-applicable", finding="one segment has nothing to leak to")
    if context.embedding is None:
        return _undecided("no module maps token ids to embeddings, so there is nothing to differentiate by")
    leaves: list[torch.Tensor] = []

    def leaf(output: torch.Tensor) -> torch.Tensor:
        leaves.append(output.detach().requires_grad_(True))
        return leaves[-1]

    with torch.enable_grad(), replaced_output(context.embedding, leaf):
        logits = subject.logits(subject.run(inputs), layout.slots)
    if not logits.requires_grad:
        return _undecided("logits carry no graph: the forward pass detaches, or runs without gradients")
    generator = torch.Generator().manual_seed(context.seed)
    count = len(context.samples)
    reach = np.zeros((count, count))
    for i, (start, stop) in enumerate(layout.spans):
        weights = torch.randn(stop - start, logits.shape[1], generator=generator).to(logits)
        with blamed_on("the backward pass"):
            (grad,) = torch.autograd.grad(
                (logits[start:stop] * weights).sum(), leaves, retain_graph=True, allow_unused=True
            )
        by_slot = None if grad is None else as_slots(grad, layout.rows, layout.length)
        if by_slot is None:
            return _undecided("the embeddings receive no gradient")
        if not bool(torch.isfinite(by_slot).all()):
            return _undecided("gradients are not finite")
        for j, (first, last) in enumerate(layout.spans):
            reach[i, j] = float(by_slot[first:last].abs().max())
    own = reach.diagonal().copy()
    np.fill_diagonal(reach, 0)
    details = {"gradients": reach.tolist(), "own": own.tolist()}
    if (own == 0).any():
        return _undecided(f"segment {int(np.argmin(own)) + 1}'s logits have no gradient by its own embeddings", details)
    worst = float(reach.max())
    if worst == 0:
        return CheckResult(
            name="gradients",
            verdict="proven",
            measured=0.0,
            tolerance=0.0,
            finding=f"all {count * (count - 1)} gradients between segments are exactly zero",
            details=details,
        )
    of, by = (int(i) for i in np.unravel_index(reach.argmax(), reach.shape))
    before = context.results.get("isolation")
    if before is not None and before.mechanism:
        mechanism, where = before.mechanism, before.where
    else:
        found = scan(context, subject, stage="gradient", draws=1)
        leaky = found.leaky and found.culprit is not None
        mechanism = name_leak(context, subject, found, train=False) if leaky else "segments-mix"
        where = found.move.module if found.move else ""
    return CheckResult(
        name="gradients",
        verdict="violated",
        mechanism=mechanism,
        measured=worst,
        tolerance=0.0,
        where=where,
        finding=f"segment {of + 1}'s logits have gradient {worst:.3g} by segment {by + 1}'s embeddings "
        f"({own[of]:.3g} by its own); {int((reach > 0).sum())} ordered pairs",
        details=details,
    )


def _undecided(why: str, details: dict | None = None) -> CheckResult:
    return CheckResult(name="gradients", verdict="undecided", finding=why, details=details or {})
