"""A batch as plain attention calls: one for a causal or bidirectional rule, one per rank class for the others."""

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from padless.attention.segments import Segments
from padless.masks.calls import varlen_calls
from padless.masks.geometry import pieces_of
from padless.rows import Batch
from padless.rows.validate import check

_known: "weakref.WeakKeyDictionary[Batch, tuple[Step, ...]]" = weakref.WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One plain call: the queries at `q_index` attend to the keys at `k_index`, segment by segment.

    Attributes:
        segments: Of the gathered tokens.
        q_index: int64 slots of the queries, or None for all slots as they lie.
        k_index: The same for keys and values.
        left: Keys visible before the bottom-right diagonal; None is no limit.
        right: Keys visible after it.
    """

    segments: Segments
    q_index: np.ndarray | None
    k_index: np.ndarray | None
    left: int | None
    right: int | None

    def take(self, side: str, x: torch.Tensor) -> torch.Tensor:
        """The rows of `x` that this call reads on one side."""
        index = self.q_index if side == "q" else self.k_index
        return x if index is None else x.index_select(0, self.index(side, x.device))

    def index(self, side: str, device: Any) -> torch.Tensor:
        """`q_index` or `k_index` as a tensor on `device`; made once."""
        index = self.q_index if side == "q" else self.k_index
        assert index is not None
        key = ("step", side, torch.device(device))
        return self.segments.kept(key, lambda: torch.from_numpy(index.astype(np.int64)).to(device))


def steps_of(batch: Batch) -> tuple[Step, ...]:
    """The calls of a batch, made by the first layer that asks; its arrays are checked again before.

    A batch on a device is read back here, once.

    Raises:
        PadlessError: When the batch is impossible (a boundary was changed since it was made), or its rule has no
            plain calls.
    """
    if batch not in _known:
        host = batch.numpy()
        check(host)
        _known[batch] = _ranked(host) if host.rule.has_ranks else (_plain(host),)
    return _known[batch]


def _plain(batch: Batch) -> Step:
    pieces = pieces_of(batch)
    sides = (pieces.starts, pieces.lengths)
    left, right = batch.rule.window or (None, None)
    return Step(
        segments=Segments(
            q_starts=sides[0],
            q_lengths=sides[1],
            k_starts=sides[0],
            k_lengths=sides[1],
            q_slots=batch.num_slots,
            k_slots=batch.num_slots,
        ),
        q_index=None,
        k_index=None,
        left=left,
        right=0 if batch.rule.kind == "causal" else right,
    )


def _ranked(batch: Batch) -> tuple[Step, ...]:
    return tuple(
        Step(
            segments=Segments.of(call.cu_seqlens_q, call.cu_seqlens_k),
            q_index=call.q_index,
            k_index=call.k_index,
            left=None if call.window[0] < 0 else call.window[0],
            right=None if call.window[1] < 0 else call.window[1],
        )
        for call in varlen_calls(batch)
    )
