"""Pieces that one kernel call computes together: equal neighbours as they lie, tiny ones copied side by side."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch

from padless.attention.cost import Cost
from padless.attention.pieces import Piece, band
from padless.attention.places import Picked, Run

# Tokens of one head of 64 that a call on a CPU takes at most, if it has a choice: what it reads, computes and writes
# then stays in the core's own cache, and no call asks the system for large pages. In one call, the kernel itself takes
# twice as long for 512 segments of 16.
PORTION = 4096

_Item = TypeVar("_Item")


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """One kernel call.

    Attributes:
        q: Where the queries are.
        k: Where keys and values are.
        causal: The plain triangle.
        seen: Who sees whom, when it is neither all nor the triangle; bool, broadcast to `[n, H, nq, nk]`.
        shared_keys: Whether keys are read by other pieces too, so that their gradients add up.
    """

    q: Run | Picked
    k: Run | Picked
    causal: bool
    seen: torch.Tensor | None
    shared_keys: bool = False

    @property
    def cost(self) -> float:
        """Work, in any unit: pairs, and what a token costs beside them."""
        return self.q.count * self.q.length * (self.k.length + 64.0)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All kernel calls of one batch.

    Attributes:
        groups: The calls.
        covers_q: Whether they write every query slot, so that outputs need no zeroing.
        covers_k: The same for key slots.
    """

    groups: tuple[Group, ...]
    covers_q: bool
    covers_k: bool

    @property
    def shared_keys(self) -> bool:
        """Whether any key gradients add up."""
        return any(g.shared_keys for g in self.groups)


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
    limit = PORTION / heads if device.type == "cpu" else None
    groups = [_run(part, shared[part[0]], device) for run in runs for part in _portions(run, run[0].nq, limit)]
    for members in _batches(tiny, heads, cost):
        groups += [_picked(part, device) for part in _portions(members, members[-1].nq, limit)]
    covered = sum(p.nq for p in pieces), sum(p.nk for p in pieces)
    return Plan(
        groups=tuple(groups),
        covers_q=covered[0] == slots[0],
        covers_k=covered[1] == slots[1] and not any(shared.values()),
    )


def _portions(members: Sequence[_Item], length: int, limit: float | None) -> Iterable[Sequence[_Item]]:
    """Pieces of up to `length` tokens in portions of `limit` tokens, at least one piece in each."""
    step = len(members) if limit is None else max(1, int(limit / length))
    for at in range(0, len(members), step):
        yield members[at : at + step]


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


def _run(run: Sequence[Piece], shared: bool, device: torch.device) -> Group:
    piece = run[0]
    return Group(
        q=Run(start=piece.q, length=piece.nq, count=len(run)),
        k=Run(start=piece.k, length=piece.nk, count=len(run)),
        causal=piece.causal,
        seen=None if piece.causal or piece.full else torch.from_numpy(band(*piece.shape)).to(device),
        shared_keys=shared,
    )


def _picked(members: Sequence[Piece], device: torch.device) -> Group:
    causal = any(p.causal for p in members)
    seen = None if causal else _seen_in_batch(members)
    return Group(
        q=Picked.of([(p.q, p.nq) for p in members], device),
        k=Picked.of([(p.k, p.nk) for p in members], device),
        causal=causal,
        seen=None if seen is None else torch.from_numpy(seen).to(device),
    )


def _seen_in_batch(members: Sequence[Piece]) -> np.ndarray | None:
    """What a padded batch that is no triangle hides: padding keys, or all outside a band."""
    nq, nk = max(p.nq for p in members), max(p.nk for p in members)
    lengths = np.array([p.nk for p in members])
    if (lengths != nk).any():
        rows = np.arange(nk)[None, :] < lengths[:, None]
        return np.ascontiguousarray(np.broadcast_to(rows[:, None, None, :], (len(members), 1, nq, nk)))
    return None if members[0].full else band(*members[0].shape)
