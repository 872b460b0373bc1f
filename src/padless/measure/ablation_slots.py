"""What a camera or media slot holds over a whole data set: nothing, always the same, or a view."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from padless.errors import PadlessError
from padless.rows.tensors import host

SlotClass = Literal["masked everywhere", "constant", "real"]


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One camera or media slot of the samples that are looked at.

    Attributes:
        name: What the callback calls it.
        kind: `"masked everywhere"`: no sample attends to it, so dropping it changes nothing. `"constant"`: attended to,
            and the same picture in every sample: no information, yet not lossless for a model that was trained with it.
            `"real"`: pictures that differ.
        tokens: Tokens it takes in a sample.
        compute: Its share of a forward pass, 0 to 1, from a cost model; None where there is none.
        present: Share of samples that have it.
    """

    name: str
    kind: SlotClass
    tokens: int
    compute: float | None = None
    present: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.present <= 1 or (self.kind == "masked everywhere") != (self.present == 0):
            raise PadlessError(f"slot {self.name!r} is {self.kind} and present in {self.present:.1%} of the samples")

    @classmethod
    def of(cls, name: str, *, tokens: int, masks: Any, images: Any, compute: float | None = None) -> "Slot":
        """Classify a slot from its masks and pictures.

        Args:
            name: Its name.
            tokens: Tokens it takes in a sample.
            masks: bool[N], True where the model may attend to it.
            images: `[N, ...]`, arrays or tensors; only those that are not masked are looked at.
            compute: Its share of a forward pass.

        Example:
            >>> images = np.zeros((3, 2, 2))
            >>> Slot.of("wrist", tokens=256, masks=[False] * 3, images=images).kind
            'masked everywhere'
            >>> Slot.of("wrist", tokens=256, masks=[True] * 3, images=images).kind
            'constant'
        """
        there = np.asarray(host(masks)).astype(bool)
        pictures = np.asarray(host(images))
        if there.ndim != 1 or len(pictures) != len(there) or len(there) == 0:
            raise PadlessError(f"slot {name!r}: {len(pictures)} images beside masks of shape {there.shape}")
        if not there.any():
            kind: SlotClass = "masked everywhere"
        else:
            shown = pictures[there]
            kind = "constant" if len(shown) > 1 and (shown == shown[0]).all() else "real"
        return cls(name=name, kind=kind, tokens=tokens, compute=compute, present=float(there.mean()))
