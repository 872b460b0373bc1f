"""Loss and parameter gradients as training takes them, and how far two of them are apart."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from padless.auditing.context import Context
from padless.auditing.noise import REPETITION, disturbance, disturbed, replaced_output
from padless.auditing.samples import target_mask
from padless.auditing.subject import FailedError, Subject


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The loss (float) and the gradient of every trainable parameter."""

    loss: float
    gradients: list[torch.Tensor]

    def distance(self, other: "Objective") -> tuple[float, float]:
        """Relative distances of loss and gradients.

        A parameter's difference counts against its own gradient's norm plus a hundredth of the whole gradient's, so
        that parameters which receive only rounding do not decide.
        """
        loss = abs(self.loss - other.loss) / max(abs(self.loss), 1e-300)
        whole = sum(float(g.double().pow(2).sum()) for g in self.gradients) ** 0.5
        pairs = zip(self.gradients, other.gradients, strict=True)
        parts = [float((a - b).double().norm()) / (float(a.double().norm()) + 0.01 * whole + 1e-300) for a, b in pairs]
        return loss, max(parts)

    def __mul__(self, weight: float) -> "Objective":
        return Objective(loss=self.loss * weight, gradients=[g * weight for g in self.gradients])

    def __add__(self, other: "Objective") -> "Objective":
        pairs = zip(self.gradients, other.gradients, strict=True)
        return Objective(loss=self.loss + other.loss, gradients=[a + b for a, b in pairs])


def objective(subject: Subject, inputs: Any, num_targets: int) -> Objective:
    """One forward and backward pass in evaluation mode.

    Raises:
        FailedError: When the loss is not a finite scalar, or no parameter gets a gradient.
        NoLossError: When there is no loss.
    """
    with torch.enable_grad():
        loss = subject.loss(subject.run_counting(inputs, num_targets), inputs, num_targets)
        if loss.numel() != 1:
            raise FailedError(f"the loss has shape {tuple(loss.shape)}; expected a scalar")
        if not bool(torch.isfinite(loss)):
            raise FailedError(f"the loss is {float(loss)}")
        gradients = subject.gradients(loss.reshape(()))
    return Objective(loss=float(loss.detach()), gradients=gradients)


def targets_of(context: Context, which: Sequence[int]) -> int:
    """Number of targets of some samples."""
    return sum(int(target_mask(context.samples[i], shift=context.shift).sum()) for i in which)


def trained_samples(context: Context) -> list[int]:
    """Samples that have a target; the loss of the others alone is 0/0."""
    return [i for i in range(len(context.samples)) if targets_of(context, [i])]


def tolerances(context: Context, base: Objective, num_targets: int) -> tuple[float, float]:
    """What rounding may explain in the distances of loss and gradients: as for logits, by response to disturbance."""
    subject, inputs, noise = context.reference, context.inputs, context.noise
    again = base.distance(objective(subject, inputs, num_targets))
    size = disturbance(noise.eps)
    responses = [(1.0, 1.0)]  # without an embedding to disturb: as if every output moved by its own size
    if context.embedding is not None:
        generator = torch.Generator().manual_seed(context.seed)
        responses = []
        for _ in range(2):
            with contextlib.ExitStack() as stack:
                stack.enter_context(replaced_output(context.embedding, disturbed(generator, size)))
                moved = base.distance(objective(subject, inputs, num_targets))
            responses.append((moved[0] / size, moved[1] / size))
    # The sums themselves round too, whatever the response: hence the 1.
    return tuple(REPETITION * again[k] + noise.growth * max(1.0, *(r[k] for r in responses)) for k in (0, 1))  # pyright: ignore[reportReturnType]
