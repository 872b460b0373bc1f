"""Segments cut into pieces that a fixed-shape kernel can take: full, causal, or a band."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from padless.attention.segments import Segments

# Queries of one banded piece: wide enough to keep a kernel busy, narrow enough that its mask stays small.
BAND = 256


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Query `i` of the piece sees key `j` of it iff `lo <= j - i <= hi`; None is no limit.

    Attributes:
        q: First query slot.
        nq: Queries.
        k: First key slot.
        nk: Keys.
        lo: Smallest visible distance.
        hi: Largest visible distance.
    """

    q: int
    nq: int
    k: int
    nk: int
    lo: int | None
    hi: int | None

    @property
    def shape(self) -> tuple[int, int, int | None, int | None]:
        """What must agree for two pieces to share a kernel call without padding."""
        return self.nq, self.nk, self.lo, self.hi

    @property
    def causal(self) -> bool:
        """The plain triangle that every kernel has."""
        return self.nq == self.nk and self.lo is None and self.hi == 0

    @property
    def full(self) -> bool:
        """Every query sees every key."""
        return self.lo is None and self.hi is None


def cut(segments: Segments, left: int | None, right: int | None, *, longest: int | None = None) -> list[Piece]:
    """All pieces of all segments; queries that see no key and keys that no query sees are in none of them.

    Args:
        segments: Where they are.
        left: Keys visible before the diagonal, as in `Problem`.
        right: Keys visible after it.
        longest: Queries per piece at most, for kernels that write their scores out; None leaves full and causal
            pieces whole.
    """
    pieces = []
    sides = (segments.q_starts, segments.q_lengths, segments.k_starts, segments.k_lengths)
    for q, nq, k, nk in zip(*(side.tolist() for side in sides), strict=True):
        if nq and nk:
            lo = None if left is None else nk - nq - left
            hi = None if right is None else nk - nq + right
            pieces += _cut_one(Piece(q=q, nq=nq, k=k, nk=nk, lo=lo, hi=hi), longest)
    return pieces


def _cut_one(piece: Piece, longest: int | None) -> list[Piece]:
    """One segment, trimmed to what is seen; a band or an over-long piece is cut along its queries."""
    whole = _trim(piece, 0, piece.nq)
    if whole is None:
        return []
    plain = whole.full or whole.causal
    if whole.nq <= (BAND if not plain else longest or whole.nq):
        return [whole]
    edges = [*range(0, piece.nq, min(BAND, longest or BAND)), piece.nq]
    return [part for a, b in pairwise(edges) if (part := _trim(piece, a, b)) is not None]


def _trim(piece: Piece, a: int, b: int) -> Piece | None:
    """Queries `[a, b)` of a piece with just the keys they see; limits that limit nothing are dropped."""
    lo, hi = piece.lo, piece.hi
    if hi is not None:
        a = max(a, -hi)
    if a >= b:
        return None
    first = 0 if lo is None else max(0, a + lo)
    last = piece.nk if hi is None else min(piece.nk, b + hi)
    nq, nk = b - a, last - first
    if lo is not None:
        lo += a - first
    if hi is not None:
        hi += a - first
    return Piece(
        q=piece.q + a,
        nq=nq,
        k=piece.k + first,
        nk=nk,
        lo=None if lo is None or lo <= 1 - nq else lo,
        hi=None if hi is None or hi >= nk - 1 else hi,
    )


def band(nq: int, nk: int, lo: int | None, hi: int | None) -> np.ndarray:
    """Who sees whom in a piece; bool `[nq, nk]`."""
    distance = np.arange(nk)[None, :] - np.arange(nq)[:, None]
    seen = np.ones((nq, nk), bool)
    if lo is not None:
        seen &= distance >= lo
    if hi is not None:
        seen &= distance <= hi
    return seen
