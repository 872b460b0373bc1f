"""What is measured: one set of weights, and the ways in which it can run a batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from padless.rows import Batch

if TYPE_CHECKING:
    import torch

Way = Literal["padded", "masked", "dense", "packed"]
Run = Callable[[Batch], "torch.Tensor"]


@dataclass(frozen=True, kw_only=True)
class Trainee:
    """A causal language model as measurements see it; they know no framework.

    Each way takes a batch of tensors on `device` and returns logits of all its slots, `[..., vocabulary]`, in the
    slots' order. All ways share the same parameters.

    Attributes:
        name: What a reader should call it.
        vocabulary: Token ids are below this.
        device: Where parameters are and batches go.
        parameters: What the optimizer steps.
        padded: Rows of one sample each, padded on the right, without an attention mask. A causal model needs none: no
            token looks to the right, and padding is no target. This is the fastest correct way to run padded rows.
        masked: The same rows with an attention mask of ones and zeros, as trainers' collators hand them over.
        dense: One packed row, isolated by the framework's own dense mask.
        packed: One packed row, isolated by padless.
    """

    name: str
    vocabulary: int
    device: str
    parameters: Sequence["torch.nn.Parameter"]
    padded: Run
    masked: Run
    dense: Run
    packed: Run

    @property
    def size(self) -> int:
        """Number of weights."""
        return sum(parameter.numel() for parameter in self.parameters)

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        if self.device.startswith("cuda"):
            import torch

            torch.cuda.synchronize(self.device)
