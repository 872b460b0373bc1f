"""What packing does, step by step, as a plain dictionary for any dashboard.

A loss curve does not show that rows have become half empty, or that one rank waits for another. These numbers do. The
callbacks of `padless.frameworks` send them to whatever the user's trainer logs to already.
"""

import time
import warnings
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from padless.errors import PadlessError
from padless.rows import Batch
from padless.rows.tensors import host
from padless.training.balance import TOKENS, Cost, imbalance


class PaddingWarning(UserWarning):
    """Rows are emptier than they were when training began."""


class Facts(NamedTuple):
    """What batches hold, in integers that may be added up over micro-batches, steps and ranks.

    Attributes:
        rows: Rows.
        segments: Segments.
        tokens: Real tokens.
        slots: Slots that the model computes, padding included.
        room: Slots that the rows could hold: rows times the capacity, or `slots` where that is more.
        targets: Tokens that are trained on.
        pairs: Sum of squared segment lengths: what attention works on.
        row_pairs: Sum of squared rows: what attention would work on if rows were not cut into segments.
    """

    rows: int = 0
    segments: int = 0
    tokens: int = 0
    slots: int = 0
    room: int = 0
    targets: int = 0
    pairs: int = 0
    row_pairs: int = 0

    @classmethod
    def of(cls, batch: Batch, *, capacity: int | None = None) -> "Facts":
        """Count one batch.

        Args:
            batch: Of arrays or tensors; from a GPU its boundaries are copied, which waits for the GPU.
            capacity: Slots that a row could hold; None takes the batch's own slots.

        Example:
            >>> from padless import collate
            >>> Facts.of(collate([[5, 6, 7], [8, 9]]), capacity=8)
            Facts(rows=1, segments=2, tokens=5, slots=5, room=8, targets=3, pairs=13, row_pairs=25)
        """
        boundaries = host(batch.cu_seqlens).astype(np.int64)
        lengths = np.diff(boundaries[: batch.num_segments + 1])
        rows = np.diff(boundaries[host(batch.row_offsets)])
        return cls(
            rows=batch.num_rows,
            segments=batch.num_segments,
            tokens=int(lengths.sum()),
            slots=batch.num_slots,
            room=max(batch.num_slots, batch.num_rows * (capacity or 0)),
            targets=batch.num_targets,
            pairs=int(np.square(lengths).sum()),
            row_pairs=int(np.square(rows).sum()),
        )

    def plus(self, other: "Facts") -> "Facts":
        """Both together."""
        return Facts(*(a + b for a, b in zip(self, other, strict=True)))


class PackingMetrics:
    """Turns the batches of each optimizer step into numbers for a dashboard.

    Args:
        capacity: Slots that a row could hold, `dataset.plan.capacity`; None measures batches by their own slots.
        cost: What a token and a pair cost, for `packing/imbalance` and `packing/attention_fraction`. Without it,
            imbalance is of tokens and `packing/attention_fraction` is left out.
        group: A `torch.distributed` group over whose ranks to sum, or `True` for the default one; None is this process
            alone. One small gather a step.
        window: Steps over which the padding rate is averaged.
        rise: Warn when the average of the last `window` steps is this much above that of the first; e.g. 0.05 is five
            slots in a hundred.

    Raises:
        PadlessError: When `window` or `rise` is not positive.

    Example:
        >>> from padless import collate
        >>> metrics = PackingMetrics(capacity=8)
        >>> for name, value in metrics.step(collate([[5, 6, 7], [8, 9]]), seconds=0.5).items():
        ...     print(name, round(value, 3))
        packing/padding 0.0
        packing/efficiency 0.625
        packing/segments_per_row 2.0
        packing/rows 1.0
        packing/tokens 5.0
        packing/targets 3.0
        packing/pairs_fraction 0.52
        packing/imbalance 1.0
        throughput/real_tokens_per_second 10.0
        throughput/slots_per_second 10.0
    """

    def __init__(
        self,
        *,
        capacity: int | None = None,
        cost: Cost | None = None,
        group: Any = None,
        window: int = 100,
        rise: float = 0.05,
    ) -> None:
        if window < 1 or rise <= 0:
            raise PadlessError(f"window={window}, rise={rise}: expected at least one step and a positive rise")
        self.capacity, self.cost, self.group = capacity, cost, group
        self._watch = _Watch(window, rise)
        self._clock = time.perf_counter()

    def step(self, batches: Batch | Sequence[Batch] | Facts, *, seconds: float | None = None) -> dict[str, float]:
        """The numbers of one optimizer step.

        Args:
            batches: Its micro-batches on this rank, or their facts added up.
            seconds: How long the step took; the time since the last call unless given.

        Returns:
            `packing/padding`: padding among the slots that were computed.
            `packing/efficiency`: real tokens among the slots that rows could hold.
            `packing/segments_per_row`, `packing/rows`, `packing/tokens`, `packing/targets`: of the step.
            `packing/pairs_fraction`: (query, key) pairs that attention works on, of those in uncut rows.
            `packing/attention_fraction`: attention's share of the step's cost, where a cost was given.
            `packing/imbalance`: how much longer the slowest rank works than the mean rank; 1.0 is perfect.
            `throughput/real_tokens_per_second`, `throughput/slots_per_second`: over all ranks.
        """
        mine = batches if isinstance(batches, Facts) else self.facts(batches)
        now = time.perf_counter()
        taken, self._clock = (now - self._clock if seconds is None else seconds), now
        ranks = _gather(mine, self.group)
        cost = self.cost or TOKENS
        loads = ranks[:, 2] * cost.linear + ranks[:, 6] * cost.quadratic
        total = Facts(*ranks.sum(axis=0).tolist())
        self._watch.add(1 - total.tokens / total.room)
        return {**_packing(total, self.cost), "packing/imbalance": imbalance(loads), **_speed(total, taken)}

    def restart(self) -> None:
        """Start the clock of the next step now."""
        self._clock = time.perf_counter()

    def facts(self, batches: Batch | Sequence[Batch]) -> Facts:
        """The facts of some micro-batches of this rank, added up."""
        total = Facts()
        for batch in [batches] if isinstance(batches, Batch) else batches:
            total = total.plus(Facts.of(batch, capacity=self.capacity))
        return total


def _packing(facts: Facts, cost: Cost | None) -> dict[str, float]:
    found = {
        "packing/padding": 1 - facts.tokens / facts.slots,
        "packing/efficiency": facts.tokens / facts.room,
        "packing/segments_per_row": facts.segments / facts.rows,
        "packing/rows": float(facts.rows),
        "packing/tokens": float(facts.tokens),
        "packing/targets": float(facts.targets),
        "packing/pairs_fraction": facts.pairs / facts.row_pairs,
    }
    if cost is not None:
        attention = cost.quadratic * facts.pairs
        found["packing/attention_fraction"] = attention / (attention + cost.linear * facts.tokens)
    return found


def _speed(facts: Facts, seconds: float) -> dict[str, float]:
    return {
        "throughput/real_tokens_per_second": facts.tokens / seconds,
        "throughput/slots_per_second": facts.slots / seconds,
    }


def _gather(mine: Facts, group: Any) -> np.ndarray:
    """`int64[ranks, 8]`: the facts of every rank."""
    if group is None:
        return np.array([mine], dtype=np.int64)
    import torch
    import torch.distributed as dist

    members = None if group is True else group
    device = "cuda" if dist.get_backend(members) == "nccl" else "cpu"
    row = torch.tensor(mine, dtype=torch.int64, device=device)
    found = [torch.empty_like(row) for _ in range(dist.get_world_size(members))]
    dist.all_gather(found, row, group=members)
    return torch.stack(found).cpu().numpy()


class _Watch:
    """Compares the padding rate of the last steps with that of the first, and warns at each further rise."""

    def __init__(self, window: int, rise: float) -> None:
        self.rise = rise
        self._last: deque[float] = deque(maxlen=window)
        self._baseline: float | None = None

    def add(self, rate: float) -> None:
        self._last.append(rate)
        if len(self._last) < (self._last.maxlen or 0):
            return
        mean = sum(self._last) / len(self._last)
        if self._baseline is None:
            self._baseline = mean
        elif mean > self._baseline + self.rise:
            warnings.warn(
                f"the padding rate rose from {self._baseline:.1%} to {mean:.1%} (mean of {len(self._last)} steps): "
                "rows are emptier than when training began, so each step costs the same and teaches less; has the data "
                "changed, or does a stream pack with too small a buffer?",
                PaddingWarning,
                stacklevel=3,
            )
            self._baseline = mean
