"""One training example: its tokens and which of them are trained on."""

from dataclasses import dataclass

import numpy as np

from padless.errors import PadlessError

__all__ = ["Sample"]


@dataclass(frozen=True, eq=False)
class Sample:
    """One training example.

    Args:
        input_ids: `uint[n]`, the token ids.
        targets: `bool[n]`, True where the token's prediction enters the loss; None means every token but the first
            is a target. The first token is never a target: nothing in its own sample predicts it.
        sample_id: Its place in the store, -1 outside one.

    Raises:
        PadlessError: When the two arrays differ in shape, are not one-dimensional, or the first token is a target.

    Example:
        >>> sample = Sample(np.array([5, 6, 7]), np.array([False, False, True]))
        >>> len(sample), int(sample.target_mask().sum())
        (3, 1)
    """

    input_ids: np.ndarray
    targets: np.ndarray | None = None
    sample_id: int = -1

    def __post_init__(self) -> None:
        if self.input_ids.ndim != 1 or self.input_ids.dtype.kind not in "iu":
            raise PadlessError(
                f"a sample's input_ids are a one-dimensional array of whole numbers; "
                f"got {self.input_ids.dtype} of shape {self.input_ids.shape}"
            )
        if self.targets is None:
            return
        if self.targets.shape != self.input_ids.shape or self.targets.dtype != np.bool_:
            raise PadlessError(
                f"a sample's targets are one bool per token: expected bool {self.input_ids.shape}, "
                f"got {self.targets.dtype} {self.targets.shape}"
            )
        if len(self.targets) and self.targets[0]:
            raise PadlessError("the first token of a sample cannot be a target: nothing in the sample predicts it")

    def __len__(self) -> int:
        return len(self.input_ids)

    def target_mask(self) -> np.ndarray:
        """`bool[n]`: the targets, written out where `targets` is None."""
        if self.targets is not None:
            return self.targets
        mask = np.ones(len(self.input_ids), np.bool_)
        mask[:1] = False
        return mask
