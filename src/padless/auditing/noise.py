"""How much rounding may explain: measured on the model at hand, never assumed.

- **Repetition.** The same call twice; what differs is the noise of nondeterministic kernels.
- **Precision.** The coarsest floating dtype of any result inside the forward pass, seen by a dispatch mode. A float64
  model whose attention computes its softmax in float32 is a float32 model to us.
- **Sensitivity.** Embeddings are multiplied by 1 + d * normal, with small d, and the outputs' response is divided by
  d. A rounding error somewhere inside acts like such a disturbance of relative size eps.
- **Shapes.** Experts get different numbers of tokens when tokens change, so matrix products of other shapes are
  used, which round differently. The sequence of operators and shapes tells whether that can have happened. Where it is
  the same in both passes, isolated outputs are equal to the bit.

The tolerance of a comparison between two differently shaped passes is

    4 * repetition noise + 8 * sqrt(module calls) * eps * sensitivity

since each module call rounds about once and independent errors add in quadrature; 8 leaves room for the largest of many
elements.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from padless.auditing.subject import Subject, tokens_of

REPETITION = 4.0
SAFETY = 8.0


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What was measured on one subject.

    Attributes:
        eps: Unit roundoff of the coarsest floating dtype seen.
        sites: Module calls in one pass.
        repetition: Largest absolute difference of logits between identical calls.
        sensitivity: Largest absolute response of logits per unit of relative disturbance.
    """

    eps: float
    sites: int
    repetition: float
    sensitivity: float

    @property
    def growth(self) -> float:
        """By how much a relative rounding error is amplified beside the response: eps times the factor above."""
        return SAFETY * math.sqrt(max(self.sites, 1)) * self.eps

    @property
    def tolerance(self) -> float:
        """Largest difference of logits that rounding may explain between passes of different shapes."""
        return REPETITION * self.repetition + self.growth * self.sensitivity


@dataclass
class Operators(TorchDispatchMode):
    """Sees every operator of a pass: their shapes, and the coarsest floating dtype."""

    eps: float = 0.0
    shapes: list[tuple[str, tuple[tuple[int, ...], ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [t for t in (result if isinstance(result, tuple | list) else [result]) if torch.is_tensor(t)]
        for tensor in tensors:
            # Scalars and tables of a few numbers (scales, ids) do not round activations.
            if tensor.is_floating_point() and tensor.numel() > 16:
                self.eps = max(self.eps, torch.finfo(tensor.dtype).eps)
        self.shapes.append((str(func), tuple(tuple(t.shape) for t in tensors)))
        return result


def operators(subject: Subject, inputs: Any, *, train: bool = False) -> Operators | None:
    """The operators of one pass; None for models that cannot run under a dispatch mode."""
    mode = Operators()
    try:
        with torch.no_grad(), mode:
            subject.run(inputs, train=train)
    except Exception:  # noqa: BLE001 - some attention classes refuse dispatch modes
        return None
    return mode


def roundoff(subject: Subject, inputs: Any) -> float:
    """Unit roundoff of the coarsest dtype that the pass computes in."""
    seen = operators(subject, inputs)
    eps = seen.eps if seen is not None and seen.eps else float(torch.finfo(torch.float32).eps)
    if seen is None:
        eps = max(eps, torch.finfo(subject.dtype).eps)
    if subject.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        eps = max(eps, 2.0**-11)
    return eps


def find_embedding(subject: Subject, inputs: Any) -> torch.nn.Module | None:
    """The first module that is called with the token ids and gives vectors: the token embedding."""
    ids = tokens_of(inputs)
    found: list[torch.nn.Module] = []

    def hook(module, args, kwargs, output):
        given = [*args, *kwargs.values()]
        if found or not (torch.is_tensor(output) and output.is_floating_point()):
            return
        first = given[0] if given else None
        if not isinstance(first, torch.Tensor) or first.is_floating_point() or first.numel() != ids.numel():
            return
        if torch.equal(first.reshape(-1).to(ids), ids.reshape(-1)):
            found.append(module)

    handles = [
        m.register_forward_hook(hook, with_kwargs=True) for m in subject.model.modules() if not list(m.children())
    ]
    try:
        with torch.no_grad():
            subject.run(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


@contextlib.contextmanager
def replaced_output(module: torch.nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Let a module's output pass through `change`."""

    def hook(_module: torch.nn.Module, _args: Any, output: torch.Tensor) -> torch.Tensor:
        return change(output)

    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def disturbed(generator: torch.Generator, size: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Multiply by 1 + size * normal."""

    def change(x: torch.Tensor) -> torch.Tensor:
        normal = torch.randn(x.shape, generator=generator).to(x)
        return x * (1 + size * normal)

    return change


def disturbance(eps: float) -> float:
    """A relative size well above roundoff and small enough to be linear."""
    return max(1e-4, 4 * eps)
