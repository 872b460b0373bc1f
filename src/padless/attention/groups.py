"""Pieces that one kernel call computes together, and how their tokens get in and out of the packed tensors."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from padless.attention.cost import Cost
from padless.attention.pieces import Piece, band

# Mean tokens per piece from which joining views beats an index per token.
SHORT = 8


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """One kernel call.

    Attributes:
        q: Where the queries are.
        k: Where keys and values are.
        causal: The plain triangle.
        seen: Who sees whom, when it is neither all nor the triangle; bool, broadcast to `[n, H, nq, nk]`.
        shared_keys: Whether keys are read by more than one piece, so that their gradients add up.
    """

    q: Run
    k: Run
    causal: bool
    seen: torch.Tensor | None
    shared_keys: bool = False

    @property
    def cost(self) -> float:
        """Work, in any unit: pairs, and what a token costs beside them."""
        return self.q.count * self.q.length * (self.k.length + 64.0)


@dataclass(frozen=True, kw_only=True)
class ByPiece:
    """Tiny pieces copied together by joining views; twice as fast as an index per token from some 8 tokens a piece.

    Attributes:
        sizes: The packed tensor cut into pieces and what lies between them.
        order: Which of those come in the copy, one behind the other; -n stands for n slots of padding.
        splits: The copy's groups cut into pieces and padding.
        back: Where the packed tensor's parts are in the copy, when all of them are: joining is half the work of
            writing them one by one.
    """

    sizes: list[int]
    order: list[int]
    splits: list[list[int]]
    back: list[int] | None

    def load(self, x: torch.Tensor) -> torch.Tensor:
        """The copy of `[T, H, D]`, with zeros in its padding."""
        parts = x.split(self.sizes)
        longest = -min(self.order, default=0)
        zeros = x.new_zeros(max(longest, 0), *x.shape[1:])
        return torch.cat([parts[i] if i >= 0 else zeros[:-i] for i in self.order])

    def store(self, into: torch.Tensor, found: Sequence[torch.Tensor]) -> None:
        """Write the results `[n, H, length, D]` of all groups to where their tokens are."""
        flat = [x.transpose(1, 2).flatten(0, 1).to(into.dtype) for x in found]
        parts = [part for x, sizes in zip(flat, self.splits, strict=True) for part in x.split(sizes)]
        if self.back is not None:
            torch.cat([parts[i] for i in self.back], out=into)
            return
        places = into.split(self.sizes)
        for i, part in zip(self.order, parts, strict=True):
            if i >= 0:
                places[i].copy_(part)


@dataclass(frozen=True, kw_only=True)
class ByToken:
    """Tiny pieces copied together with an index per token.

    Attributes:
        tokens: Token of each slot, padding repeating the piece's last token; int64 `[slots]`.
        real: Slots that are not padding; int64.
    """

    tokens: torch.Tensor
    real: torch.Tensor

    def load(self, x: torch.Tensor) -> torch.Tensor:
        """The copy of `[T, H, D]`, with zeros in its padding."""
        if len(self.real) == len(self.tokens):
            return x.index_select(0, self.tokens)
        taken = x.new_zeros(len(self.tokens), *x.shape[1:])
        return taken.index_copy_(0, self.real, x.index_select(0, self.tokens[self.real]))

    def store(self, into: torch.Tensor, found: Sequence[torch.Tensor]) -> None:
        """Write the results `[n, H, length, D]` of all groups to where their tokens are."""
        joined = torch.cat([x.transpose(1, 2).flatten(0, 1) for x in found])
        into.index_copy_(0, self.tokens[self.real], joined.index_select(0, self.real).to(into.dtype))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All kernel calls of one batch.

    Attributes:
        direct: Calls on the packed tensors as they lie.
        copied: Calls on copies of the tiny pieces.
        q_copy: Their queries; None without tiny pieces.
        k_copy: Their keys and values.
        covers_q: Whether the calls write every query slot, so that outputs need no zeroing.
        covers_k: The same for key slots.
    """

    direct: tuple[Group, ...]
    copied: tuple[Group, ...]
    q_copy: ByPiece | ByToken | None
    k_copy: ByPiece | ByToken | None
    covers_q: bool
    covers_k: bool

    @property
    def shared_keys(self) -> bool:
        """Whether any key gradients add up."""
        return any(g.shared_keys for g in self.direct)


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
    direct = tuple(_run(run, shared[run[0]], device) for run in runs)
    batches = list(_batches(tiny, heads, cost))
    covered = sum(p.nq for p in pieces), sum(p.nk for p in pieces)
    return Plan(
        direct=direct,
        copied=_on_copies(batches, device),
        q_copy=_copy([[(p.q, p.nq) for p in b] for b in batches], slots[0], device),
        k_copy=_copy([[(p.k, p.nk) for p in b] for b in batches], slots[1], device),
        covers_q=covered[0] == slots[0],
        covers_k=covered[1] == slots[1] and not any(shared.values()),
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
        causal=piece.causal,
        seen=None if piece.causal or piece.full else torch.from_numpy(band(*piece.shape)).to(device),
        shared_keys=shared,
    )


def _on_copies(batches: list[list[Piece]], device: torch.device) -> tuple[Group, ...]:
    """One group per padded batch; batches lie one behind the other in the copies."""
    groups, q_at, k_at = [], 0, 0
    for members in batches:
        nq, nk, n = max(p.nq for p in members), max(p.nk for p in members), len(members)
        causal = any(p.causal for p in members)
        seen = None if causal else _seen_in_batch(members, nq, nk)
        groups.append(
            Group(
                q=Run(start=q_at, length=nq, count=n),
                k=Run(start=k_at, length=nk, count=n),
                causal=causal,
                seen=None if seen is None else torch.from_numpy(seen).to(device),
            )
        )
        q_at, k_at = q_at + n * nq, k_at + n * nk
    return tuple(groups)


def _seen_in_batch(members: list[Piece], nq: int, nk: int) -> np.ndarray | None:
    """What a padded batch that is no triangle hides: padding keys, or all outside a band."""
    lengths = np.array([p.nk for p in members])
    if (lengths != nk).any():
        rows = np.arange(nk)[None, :] < lengths[:, None]
        return np.ascontiguousarray(np.broadcast_to(rows[:, None, None, :], (len(members), 1, nq, nk)))
    return None if members[0].full else band(*members[0].shape)


def _copy(batches: list[list[tuple[int, int]]], slots: int, device: torch.device) -> ByPiece | ByToken | None:
    """How the tokens of padded batches get in and out; a batch is its pieces' (start, length)."""
    if not batches:
        return None
    places = [place for batch in batches for place in batch]
    if sum(n for _, n in places) >= SHORT * len(places):
        return _by_piece(batches, places, slots)
    tokens, real = [], []
    for batch in batches:
        starts, lengths = np.array(batch).T[:, :, None]
        index = np.arange(lengths.max())[None, :]
        tokens.append((starts + np.minimum(index, lengths - 1)).ravel())
        real.append((index < lengths).ravel())
    return ByToken(
        tokens=torch.from_numpy(np.concatenate(tokens)).to(device),
        real=torch.from_numpy(np.flatnonzero(np.concatenate(real))).to(device),
    )


def _by_piece(batches: list[list[tuple[int, int]]], places: list[tuple[int, int]], slots: int) -> ByPiece:
    """Cut the packed tensor at every piece, then name the parts in the order of the batches."""
    cuts = np.unique([0, slots, *(edge for start, n in places for edge in (start, start + n))])
    part_at = {int(start): i for i, start in enumerate(cuts[:-1])}
    order, splits = [], []
    for batch in batches:
        longest = max(n for _, n in batch)
        sizes = []
        for start, n in batch:
            order.append(part_at[start])
            sizes.append(n)
            if n < longest:
                order.append(n - longest)
                sizes.append(longest - n)
        splits.append(sizes)
    at = np.flatnonzero(np.array(order) >= 0)
    back = at[np.argsort(np.array(order)[at])].tolist() if len(at) == len(cuts) - 1 else None
    return ByPiece(sizes=np.diff(cuts).tolist(), order=order, splits=splits, back=back)
