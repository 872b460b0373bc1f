"""Perturb each segment and watch all others: the measurement behind the isolation check."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from padless.auditing.context import Context
from padless.auditing.noise import REPETITION, operators
from padless.auditing.recorder import Move, first_move, unstable_events
from padless.auditing.subject import FailedError, Subject


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What moved in one stage.

    Attributes:
        stage: E.g. `"float64, eval"`.
        leaks: `[S, S]`: largest movement of the column segment's logits when the row segment changes.
        own: `[S]`: largest movement of the changed segment's own logits.
        tolerance: What rounding may explain; 0.0 means bitwise.
        exact: Whether all passes ran the same operators on the same shapes.
        move: First module at which another segment moves, for the worst pair.
        culprit: (changed segment, moved segment) of the worst pair, or of any hidden movement, or None.
        finite: Whether all logits are finite.
        unstable: Largest difference between identical calls.
        inside: Whether changing a segment's first token moves its later logits.
    """

    stage: str
    leaks: np.ndarray
    own: np.ndarray
    tolerance: float
    exact: bool
    move: Move | None
    culprit: tuple[int, int] | None
    finite: bool
    unstable: float
    inside: bool

    @property
    def worst(self) -> float:
        """The largest movement of a segment that was not changed."""
        return float(self.leaks.max())

    @property
    def leaky(self) -> bool:
        """Whether it is more than rounding may explain."""
        return self.worst > self.tolerance

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(changed, moved) of all leaks."""
        return [(int(i), int(j)) for i, j in np.argwhere(self.leaks > self.tolerance)]


def scan(
    context: Context,
    subject: Subject,
    *,
    stage: str,
    train: bool = False,
    draws: int = 2,
    edit: Callable[[Any], Any] = lambda inputs: inputs,
    sources: tuple[int, ...] | None = None,
) -> Scan:
    """Change each segment in turn, `draws` times, and record what else moves.

    Args:
        context: The audit.
        subject: The model in one dtype.
        stage: Name for the report.
        train: Training mode, with the same seed before every call.
        draws: Perturbations per segment.
        edit: Change to the collated inputs, for what-if questions.
        sources: Only these segments are changed; all when None.

    Raises:
        FailedError: When the model raises, or the collator moves samples when tokens change.
    """
    count = len(context.samples)
    inputs = edit(subject.collate(context.samples))
    layout = subject.layout(inputs, context.samples)
    ids = torch.from_numpy(layout.segment_ids)
    base = context.see(subject, inputs, train=train)
    again = context.see(subject, inputs, train=train)
    unstable = float((again.logits - base.logits).abs().max())
    ignore = unstable_events(base.trace, again.trace)
    leaks, own = np.zeros((count, count)), np.zeros(count)
    finite = bool(torch.isfinite(base.logits).all())
    move, culprit, worst, same_shapes = None, None, -1.0, True
    for which in sources if sources is not None else range(count):
        for draw in range(draws):
            samples = context.perturbed(which, draw)
            changed = edit(subject.collate(samples))
            if not subject.layout(changed, samples).same_as(layout):
                raise FailedError("the collator puts samples elsewhere when their tokens change; lengths are the same")
            seen = context.see(subject, changed, layout=layout, train=train)
            finite &= bool(torch.isfinite(seen.logits).all())
            moved = (seen.logits - base.logits).abs().amax(dim=1).double().cpu()
            for other in range(count):
                start, stop = layout.spans[other]
                size = float(moved[start:stop].max()) if stop > start else 0.0
                if other == which:
                    own[which] = max(own[which], size)
                else:
                    leaks[which, other] = max(leaks[which, other], size)
            others = (ids != which + 1) & (ids != 0)
            found = first_move(base.trace, seen.trace, others, ignore)
            size = float(moved[others].max()) if bool(others.any()) else 0.0
            if (found is not None or size > 0) and size > worst:
                worst, move = size, found
                other = int(ids[others][moved[others].argmax()]) - 1
                culprit = (which, other)
                if found is not None and size == 0:
                    culprit = (which, int(ids[found.slots[0]]) - 1)
                same_shapes = _same_shapes(subject, inputs, changed, train)
    tolerance = REPETITION * unstable
    if not same_shapes:
        tolerance = max(tolerance, context.measure_noise(subject, inputs).tolerance)
    return Scan(
        stage=stage,
        leaks=leaks,
        own=own,
        tolerance=tolerance,
        exact=same_shapes,
        move=move,
        culprit=culprit,
        finite=finite,
        unstable=unstable,
        inside=_inside(context, subject, base.logits, inputs, edit, train),
    )


def _same_shapes(subject: Subject, a: Any, b: Any, train: bool) -> bool:
    """Whether two passes run the same operators on the same shapes; unknown counts as yes (the strict answer)."""
    first, second = operators(subject, a, train=train), operators(subject, b, train=train)
    return first is None or second is None or first.shapes == second.shapes


def _inside(context: Context, subject: Subject, base: torch.Tensor, inputs: Any, edit: Any, train: bool) -> bool:
    """Whether tokens of one segment see each other at all; if not, isolation holds for the wrong reason."""
    longest = max(range(len(context.samples)), key=lambda i: len(context.samples[i]["input_ids"]))
    layout = subject.layout(inputs, context.samples)
    start, stop = layout.spans[longest]
    half = (stop - start) // 2
    for draw in range(2):
        samples = context.perturbed(longest, draw, slice(0, half))
        seen = context.see(subject, edit(subject.collate(samples)), layout=layout, train=train)
        if bool((seen.logits[start + half : stop] != base[start + half : stop]).any()):
            return True
    return False
