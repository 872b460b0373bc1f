"""Pieces that one kernel call computes together, and how their tokens get in and out of the packed tensors."""

import functools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from padless.attention.cost import Cost
from padless.attention.pieces import Piece, band


@dataclass(frozen=True, kw_only=True)
class Run:
    """Equal pieces one after the other: a strided view of the packed tensor, nothing copied."""

    start: int
    length: int
    count: int

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """`[T, H, D]` to the view `[n, H, length, D]`."""
        s0, s1, s2 = x.stride()
        size = (self.count, x.shape[1], self.length, x.shape[2])
        return x.as_strided(size, (self.length * s0, s1, s0, s2), x.storage_offset() + self.start * s0)

    def put(self, into: torch.Tensor, x: torch.Tensor) -> None:
        """Write a group's result to where its tokens are."""
        self.take(into).copy_(x)

    def add(self, into: torch.Tensor, x: torch.Tensor) -> None:
        """Add a group's result to what other groups wrote there."""
        self.take(into).add_(x)

    take_zeroed = take  # a view has no padding


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Pieces copied into one batch, the shorter ones padded on the right.

    Attributes:
        length: Slots per piece.
        tokens: Token of each slot, padding repeating the piece's last token; int64 `[n * length]`.
        pads: Slots that are padding; int64.
    """

    length: int
    tokens: torch.Tensor
    pads: torch.Tensor

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """`[T, H, D]` to the copy `[n, H, length, D]`."""
        return x.index_select(0, self.tokens).unflatten(0, (-1, self.length)).transpose(1, 2)

    def take_zeroed(self, x: torch.Tensor) -> torch.Tensor:
        """The same with zeros in the padding, so that no gradient comes out of it."""
        taken = x.index_select(0, self.tokens)
        if len(self.pads):
            taken.index_fill_(0, self.pads, 0.0)
        return taken.unflatten(0, (-1, self.length)).transpose(1, 2)

    @functools.cached_property
    def real(self) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Slots that are real tokens (None: all), and their tokens."""
        if not len(self.pads):
            return None, self.tokens
        kept = torch.ones(len(self.tokens), dtype=torch.bool, device=self.tokens.device)
        kept[self.pads] = False
        return kept.nonzero()[:, 0], self.tokens[kept]

    def _flat(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.transpose(1, 2).flatten(0, 1)
        return flat if self.real[0] is None else flat.index_select(0, self.real[0])

    def put(self, into: torch.Tensor, x: torch.Tensor) -> None:
        """Write a group's result to where its tokens are."""
        into.index_copy_(0, self.real[1], self._flat(x).to(into.dtype))

    def add(self, into: torch.Tensor, x: torch.Tensor) -> None:
        """Add a group's result to what other groups wrote there."""
        into.index_add_(0, self.real[1], self._flat(x).to(into.dtype))


@dataclass(frozen=True, kw_only=True)
class Group:
    """One kernel call.

    Attributes:
        q: Where the queries are.
        k: Where keys and values are.
        longest: Keys of the longest piece.
        causal: The plain triangle.
        seen: Who sees whom, when it is neither all nor the triangle; bool, broadcast to `[n, H, nq, nk]`.
        shared_keys: Whether keys are read by more than one piece, so that their gradients add up.
    """

    q: Run | Gathered
    k: Run | Gathered
    longest: int
    causal: bool
    seen: torch.Tensor | None
    shared_keys: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All kernel calls of one batch.

    Attributes:
        groups: The calls.
        covers_q: Whether they write every query slot, so that outputs need no zeroing.
        covers_k: The same for key slots.
        shared_keys: Whether any group's key gradients add up.
    """

    groups: tuple[Group, ...]
    covers_q: bool
    covers_k: bool
    shared_keys: bool


def plan(pieces: list[Piece], slots: tuple[int, int], heads: float, cost: Cost, device: torch.device) -> Plan:
    """Which pieces to compute together: runs of equal neighbours as they lie, tiny ones copied into padded batches.

    Args:
        pieces: From `cut`, in order.
        slots: Query and key slots of the batch.
        heads: Query heads in units of 64 columns.
        cost: What calls and copies cost here.
        device: Where indices and masks are needed.
    """
    shared = _shared(pieces)
    runs, tiny = _split(pieces, shared, heads, cost)
    groups = [_run(run, bool(shared and shared[run[0]]), device) for run in runs]
    groups += [_gathered(members, device) for members in _batches(tiny, heads, cost)]
    covered = sum(p.nq for p in pieces), sum(p.nk for p in pieces)
    return Plan(
        groups=tuple(groups),
        covers_q=covered[0] == slots[0],
        covers_k=covered[1] == slots[1] and not any(g.shared_keys for g in groups),
        shared_keys=any(g.shared_keys for g in groups),
    )


def _shared(pieces: list[Piece]) -> dict[Piece, bool]:
    """Which pieces read keys that a neighbour reads too; key ranges move on with the pieces, so neighbours suffice."""
    shared = dict.fromkeys(pieces, False)
    for a, b in pairwise(pieces):
        if b.k < a.k + a.nk:
            shared[a] = shared[b] = True
    return shared


def _split(
    pieces: list[Piece], shared: dict[Piece, bool], heads: float, cost: Cost
) -> tuple[list[list[Piece]], list[Piece]]:
    """Runs of equal neighbours, and the pieces that are cheaper to copy together than to call alone."""
    runs: list[list[Piece]] = []
    for piece in pieces:
        last = runs[-1][-1] if runs else None
        follows = (
            last is not None
            and last.shape == piece.shape
            and (last.q + last.nq, last.k + last.nk) == (piece.q, piece.k)
            and not shared[last]
            and not shared[piece]
        )
        if follows:
            runs[-1].append(piece)
        else:
            runs.append([piece])
    kept, tiny = [], []
    for run in runs:
        copying = heads * len(run) * (run[0].nq + run[0].nk) / 2 * cost.gather_us
        if copying < cost.launch_us and not shared[run[0]]:
            tiny += run
        else:
            kept.append(run)
    return kept, tiny


def _batches(tiny: list[Piece], heads: float, cost: Cost) -> Iterable[list[Piece]]:
    """Tiny pieces in the cheapest padded batches; only triangles and full squares can be padded."""
    by_kind: defaultdict[object, list[Piece]] = defaultdict(list)
    for piece in tiny:
        triangle = piece.causal or (piece.nq == piece.nk == 1 and piece.hi is None and piece.lo is None)
        square = piece.full and piece.nq == piece.nk
        by_kind["triangle" if triangle else "square" if square else piece.shape].append(piece)
    if set(by_kind) >= {"square"}:  # one token alone is a triangle and a square
        by_kind["square"] += [p for p in by_kind.pop("triangle", []) if p.full]
    for kind, members in by_kind.items():
        if kind in ("triangle", "square"):
            yield from _cheapest(members, heads, cost)
        else:
            yield members


def _cheapest(members: list[Piece], heads: float, cost: Cost) -> Iterable[list[Piece]]:
    """Split pieces sorted by length where the split saves more padding than a call costs; exact, by dynamic program."""
    ordered = sorted(members, key=lambda p: (p.nq, p.q))
    lengths, first = np.unique([p.nq for p in ordered], return_index=True)
    edges = [*first.tolist(), len(ordered)]
    best, cut_at = [0.0], [0]
    for end in range(1, len(edges)):
        longest = int(lengths[end - 1])
        costs = [
            best[begin] + cost.gathered(heads, edges[end] - edges[begin], longest, longest) for begin in range(end)
        ]
        cut_at.append(int(np.argmin(costs)))
        best.append(costs[cut_at[-1]])
    end = len(edges) - 1
    while end:
        yield ordered[edges[cut_at[end]] : edges[end]]
        end = cut_at[end]


def _run(run: list[Piece], shared: bool, device: torch.device) -> Group:
    piece = run[0]
    return Group(
        q=Run(start=piece.q, length=piece.nq, count=len(run)),
        k=Run(start=piece.k, length=piece.nk, count=len(run)),
        longest=piece.nk,
        causal=piece.causal,
        seen=None if piece.causal or piece.full else torch.from_numpy(band(*piece.shape)).to(device),
        shared_keys=shared,
    )


def _gathered(members: list[Piece], device: torch.device) -> Group:
    nq, nk = max(p.nq for p in members), max(p.nk for p in members)
    piece = members[-1]
    ragged = any(p.nk != nk for p in members)
    causal = any(p.causal for p in members)
    seen = None
    if not causal and ragged:
        lengths = np.array([p.nk for p in members])
        rows = np.arange(nk)[None, :] < lengths[:, None]
        seen = np.ascontiguousarray(np.broadcast_to(rows[:, None, None, :], (len(members), 1, nq, nk)))
    elif not causal and not piece.full:
        seen = band(*piece.shape)
    return Group(
        q=_places([p.q for p in members], [p.nq for p in members], nq, device),
        k=_places([p.k for p in members], [p.nk for p in members], nk, device),
        longest=nk,
        causal=causal,
        seen=None if seen is None else torch.from_numpy(seen).to(device),
        shared_keys=False,
    )


def _places(starts: list[int], lengths: list[int], longest: int, device: torch.device) -> Gathered:
    index, limit = np.arange(longest)[None, :], np.array(lengths)[:, None]
    tokens = np.array(starts)[:, None] + np.minimum(index, limit - 1)
    pads = np.flatnonzero((index >= limit).ravel())
    return Gathered(
        length=longest,
        tokens=torch.from_numpy(tokens.ravel()).to(device),
        pads=torch.from_numpy(pads).to(device),
    )
