"""Proof on the user's own policy before training: padding-free equals padded, and samples do not see each other."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from padless.errors import PadlessError, ViolationError
from padless.frameworks.pi05.installing import Installed, padding_free

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.05}
"""Largest difference that rounding explains, relative to the spread of the losses (or a gradient's size)."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was measured on one batch; all numbers are relative.

    Attributes:
        losses: Largest difference of a loss between the padded policy and the changed one.
        gradients: The same of all gradients, by norm.
        leak: How much other samples' losses moved when one sample was changed.
        masked: How much losses moved when masked views and padded prompt slots were filled with something else.
        moved: How much the changed sample itself moved: the proof has power only if this is large.
        tolerance: What the first four may be.
        tokens: Prefix tokens that were computed.
        slots: Prefix slots that the padded policy computes.
    """

    losses: float
    gradients: float
    leak: float
    masked: float
    moved: float
    tolerance: float
    tokens: int
    slots: int

    @property
    def failures(self) -> list[str]:
        """Which promises do not hold."""
        names = ("losses", "gradients", "leak", "masked")
        return [name for name in names if not getattr(self, name) <= self.tolerance]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        verdict = f"NOT proven: {', '.join(self.failures)}" if self.failures else "proven"
        return (
            f"{verdict}: losses differ by {self.losses:.0e}, gradients by {self.gradients:.0e}, other samples move by "
            f"{self.leak:.0e}, masked slots count {self.masked:.0e} (tolerance {self.tolerance:.0e}; a changed sample "
            f"moves by {self.moved:.0e}); {self.tokens:,} prefix tokens instead of {self.slots:,}"
        )


def prove(
    model: Any,
    inputs: dict[str, Any],
    *,
    run: Callable[[dict[str, Any]], torch.Tensor] | None = None,
    install: Callable[[Any], Installed] = padding_free,
    strict: bool = True,
) -> Proof:
    """Run a policy padded and padding-free on one batch and compare, then try to make samples see each other.

    Args:
        model: LeRobot's `policy.model`, openpi's `PI0Pytorch`, a `SmallPolicy`; nothing is installed on it yet, and
            nothing is when this returns. Put it into evaluation mode, or dropout differs.
        inputs: `images`, `img_masks`, `tokens`, `masks`, `actions`, `noise`, `time`, of two samples or more.
        run: `run(inputs)` gives the losses `[B, H, A]`; None: `model(**inputs)`, as LeRobot's pi0.5 takes them. For
            LeRobot's pi0, and for openpi, hand the same parts over as their `forward` has them.
        install: `padding_free` or `trim`.
        strict: Raise when something does not hold.

    Raises:
        ViolationError: When the policies differ, samples leak, or masked slots matter.
        PadlessError: When there is one sample only, or the policy gives two results for the same inputs.

    Example:
        >>> from padless.frameworks.pi05.small import SmallConfig, SmallPolicy, small_samples
        >>> policy = SmallPolicy(SmallConfig(), dtype=torch.float64)
        >>> samples = small_samples(policy.config, views=[2, 3], prompts=[5, 9], dtype=torch.float64)
        >>> prove(policy, samples).failures
        []
    """
    samples = len(inputs["tokens"])
    if samples < 2:
        raise PadlessError("a proof needs two samples or more: one alone has nobody to leak to")
    call = run or (lambda given: model(**given))
    before, expected = _run(model, call, inputs)
    if not torch.equal(before, _run(model, call, inputs)[0]):
        raise PadlessError("the padded policy gives two results for the same inputs: put it into evaluation mode")
    handle = install(model)
    try:
        found, gradients = _run(model, call, inputs)
        other, _ = _run(model, call, _with_first_changed(inputs))
        unseen, _ = _run(model, call, _with_masked_changed(inputs))
    finally:
        handle.remove()
    spread = before.std().clamp(min=1e-12)
    off, size = (sum(float(g.square().sum()) for g in each) ** 0.5 for each in (_minus(gradients, expected), expected))
    calls = 3
    proof = Proof(
        losses=float((found - before).abs().max() / spread),
        gradients=off / max(size, 1e-12),
        leak=float((other[1:] - found[1:]).abs().max() / spread),
        masked=float((unseen - found).abs().max() / spread),
        moved=float((other[0] - found[0]).abs().max() / spread),
        tolerance=TOLERANCES[next(model.parameters()).dtype],
        tokens=handle.tokens // calls,
        slots=handle.slots // calls,
    )
    if strict and proof.failures:
        raise ViolationError(str(proof))
    return proof


def _run(
    model: Any, call: Callable[[dict[str, Any]], torch.Tensor], inputs: dict[str, Any]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Losses and gradients; gradients that were there before stay."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    losses = call(inputs)
    gradients = torch.autograd.grad(losses.float().mean(), parameters, allow_unused=True)
    kept = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
    return losses.detach().double(), [g.double() for g in kept]


def _minus(first: list[torch.Tensor], second: list[torch.Tensor]) -> list[torch.Tensor]:
    return [a - b for a, b in zip(first, second, strict=True)]


def _with_first_changed(inputs: dict[str, Any]) -> dict[str, Any]:
    """Other pictures and another prompt in the first sample."""
    images = [torch.cat([-image[:1] + 0.5, image[1:]]) for image in inputs["images"]]
    tokens = torch.cat([inputs["tokens"][:1].flip(1).roll(1, 0), inputs["tokens"][1:]])
    return inputs | {"images": images, "tokens": tokens}


def _with_masked_changed(inputs: dict[str, Any]) -> dict[str, Any]:
    """Other pictures where masks are False, another token in padded slots."""

    def outside(value: torch.Tensor, mask: torch.Tensor, fill: torch.Tensor) -> torch.Tensor:
        return torch.where(mask.reshape(mask.shape + (1,) * (value.ndim - mask.ndim)), value, fill)

    images = [
        outside(image, mask.bool(), 0.25 - image)
        for image, mask in zip(inputs["images"], inputs["img_masks"], strict=True)
    ]
    first = inputs["tokens"][:, :1].expand_as(inputs["tokens"])
    return inputs | {"images": images, "tokens": outside(inputs["tokens"], inputs["masks"].bool(), first)}
