"""Where the pieces of one kernel call lie in the packed tensors, and how their tokens get in and out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, kw_only=True)
class Run:
    """Equal pieces one after the other: a strided view of a packed tensor, nothing copied."""

    start: int
    length: int
    count: int

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """`[T, H, D]` to the view `[n, H, length, D]`."""
        s0, s1, s2 = x.stride()
        size = (self.count, x.shape[1], self.length, x.shape[2])
        return x.as_strided(size, (self.length * s0, s1, s0, s2), x.storage_offset() + self.start * s0)

    def take_gradient(self, x: torch.Tensor) -> torch.Tensor:
        """The same: there is no padding."""
        return self.take(x)

    def put(self, into: torch.Tensor, found: torch.Tensor) -> None:
        """Write results `[n, H, length, D]` to where their tokens are."""
        self.take(into).copy_(found)


@dataclass(frozen=True, kw_only=True, eq=False)
class Picked:
    """Pieces from anywhere, copied side by side with an index per token; shorter ones repeat their last token.

    Attributes:
        length: Slots of a piece.
        count: Pieces.
        tokens: Token of each slot; int64 `[count * length]`.
        real: Slots that are no repetition; int64. None when all are.
        padding: Those that are; int64. None when there are none.
    """

    length: int
    count: int
    tokens: torch.Tensor
    real: torch.Tensor | None
    padding: torch.Tensor | None

    @classmethod
    def of(cls, places: Sequence[tuple[int, int]], device: torch.device) -> "Picked":
        """Pieces by (start, length)."""
        starts, lengths = np.array(places).T[:, :, None]
        index = np.arange(lengths.max())[None, :]
        tokens, real = starts + np.minimum(index, lengths - 1), (index < lengths).ravel()

        def on_device(x: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(x.ravel()).to(device)

        return cls(
            length=index.size,
            count=len(places),
            tokens=on_device(tokens),
            real=None if real.all() else on_device(np.flatnonzero(real)),
            padding=None if real.all() else on_device(np.flatnonzero(~real)),
        )

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """A copy of `[T, H, D]` as `[n, H, length, D]`."""
        return x.index_select(0, self.tokens).unflatten(0, (self.count, self.length)).transpose(1, 2)

    def take_gradient(self, x: torch.Tensor) -> torch.Tensor:
        """The same, with zeros for repeated tokens: as queries they then change no gradient."""
        taken = x.index_select(0, self.tokens)
        if self.padding is not None:
            taken.index_fill_(0, self.padding, 0.0)
        return taken.unflatten(0, (self.count, self.length)).transpose(1, 2)

    def put(self, into: torch.Tensor, found: torch.Tensor) -> None:
        """Write results `[n, H, length, D]` to where their tokens are."""
        flat, tokens = found.transpose(1, 2).flatten(0, 1).to(into.dtype), self.tokens
        if self.real is not None:
            flat, tokens = flat.index_select(0, self.real), tokens[self.real]
        into.index_copy_(0, tokens, flat)
