"""Pieces that one kernel call computes together, and how their tokens get in and out of the packed tensors."""

from dataclasses import dataclass

import numpy as np
import torch

from padless.attention.pieces import Piece, band


@dataclass(frozen=True, kw_only=True)
class Run:
    """Equal pieces at equal distances: one strided view of the packed tensor, nothing copied."""

    start: int
    step: int
    length: int
    count: int

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """`[T, H, D]` to the view `[n, H, length, D]`."""
        s0, s1, s2 = x.stride()
        size = (self.count, x.shape[1], self.length, x.shape[2])
        return x.as_strided(size, (self.step * s0, s1, s0, s2), x.storage_offset() + self.start * s0)

    def put(self, into: torch.Tensor, x: torch.Tensor) -> None:
        """Write a group's result to where its tokens are."""
        self.take(into).copy_(x)

    def add(self, into: torch.Tensor, x: torch.Tensor) -> None:
        """Add a group's result; the items of one group may overlap."""
        view = self.take(into)
        for item, part in zip(view, x, strict=True):
            item += part


@dataclass(frozen=True, kw_only=True)
class Group:
    """One kernel call.

    Attributes:
        q: Where the queries are.
        k: Where keys and values are.
        causal: The plain triangle.
        seen: Who sees whom, when it is neither all nor the triangle.
        shared_keys: Whether other groups, or other items of this one, read the same keys.
    """

    q: Run
    k: Run
    causal: bool
    seen: torch.Tensor | None
    shared_keys: bool


def group(pieces: list[Piece], device: torch.device) -> list[Group]:
    """Pieces to groups."""
    found = []
    for i, piece in enumerate(pieces):
        plain = piece.causal or piece.full
        touching = [p for p in pieces[max(0, i - 1) : i + 2] if p is not piece]
        found.append(
            Group(
                q=Run(start=piece.q, step=piece.nq, length=piece.nq, count=1),
                k=Run(start=piece.k, step=piece.nk, length=piece.nk, count=1),
                causal=piece.causal,
                seen=None if plain else torch.from_numpy(np.ascontiguousarray(band(*piece.shape))).to(device),
                shared_keys=any(p.k < piece.k + piece.nk and piece.k < p.k + p.nk for p in touching),
            )
        )
    return found
