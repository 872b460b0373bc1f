"""How rows are divided over context-parallel ranks, and what that asks of them."""

import dataclasses
import math
from typing import Any, Literal

import numpy as np

from padless.errors import PadlessError
from padless.masks.packed_seq_params import padded_cu_seqlens
from padless.rows import Batch
from padless.rows.tensors import host
from padless.training.context_parallel.partition import SCHEMES

Scheme = Literal["zigzag", "contiguous", "documents"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContextParallel:
    """How each row's slots are divided over ranks.

    Args:
        ranks: Context-parallel ranks.
        scheme: `"zigzag"`: per segment, in `2 * ranks` chunks, as Megatron-Core and Transformer Engine do.
            `"contiguous"`: equal runs of the row. `"documents"`: zigzag per segment without alignment.
        sequence_parallel: Tensor-parallel ranks among which sequence parallelism divides each rank's slots again; 1
            without it.

    Raises:
        PadlessError: For a scheme that is not known, or ranks below 1.

    Example:
        >>> cp = ContextParallel(ranks=4, sequence_parallel=8)
        >>> cp.align, cp.pad_to_multiple
        (8, 32)
        >>> cp.check_capacity(4100)
        Traceback (most recent call last):
            ...
        padless.errors.PadlessError: a row of 4,100 slots is no multiple of 32 (2 * cp = 8, cp * tp = 32): ...
    """

    ranks: int
    scheme: Scheme = "zigzag"
    sequence_parallel: int = 1

    def __post_init__(self) -> None:
        for name in ("ranks", "sequence_parallel"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise PadlessError(f"{name}={value!r}: expected a whole number of ranks, at least 1")
        if self.scheme not in SCHEMES:
            raise PadlessError(f"no scheme is called {self.scheme!r}; there are {', '.join(SCHEMES)}")

    @property
    def align(self) -> int:
        """What each segment's slots are a multiple of: `collate(align=...)`."""
        return 2 * self.ranks if self.scheme == "zigzag" and self.ranks > 1 else 1

    @property
    def pad_to_multiple(self) -> int:
        """What a row's slots are a multiple of: `collate(pad_to_multiple=...)`, and its capacity.

        The least common multiple of `align` and `ranks * sequence_parallel`; segments by themselves need only `align`.
        """
        return math.lcm(self.align, self.ranks * self.sequence_parallel)

    def check_capacity(self, capacity: int) -> None:
        """Refuse a row length (`seq_length`, `capacity`) that cannot be divided.

        Raises:
            PadlessError: With the nearest lengths that can.
        """
        multiple = self.pad_to_multiple
        if capacity < 1 or capacity % multiple:
            parts = [f"2 * cp = {self.align}"] if self.align > 1 else []
            parts += [f"cp * tp = {self.ranks * self.sequence_parallel}"]
            down = capacity // multiple * multiple
            near = f"{down:,} or {down + multiple:,}" if down > 0 else f"{multiple:,}"
            raise PadlessError(
                f"a row of {capacity:,} slots is no multiple of {multiple} ({', '.join(parts)}): ranks would hold "
                f"unequal shares; use {near}"
            )

    def boundaries(self, batch: Batch) -> np.ndarray:
        """int64[P + 1], the pieces of all T slots that are divided one by one: segments, and the padding around them.

        Raises:
            PadlessError: When T is no multiple of the batch's `align`.
        """
        pieces = padded_cu_seqlens(batch)[1] if self.scheme == "zigzag" else host(batch.covering_cu_seqlens()[0])
        return pieces.astype(np.int64)

    def owners(self, batch: Batch) -> np.ndarray:
        """int64[T]: the rank that owns each slot.

        Raises:
            PadlessError: When this batch cannot be divided; the message has the alignment that would do.
        """
        if self.align > 1 and batch.align % self.align:
            raise PadlessError(
                f"the batch aligns its segments to {batch.align}, and {self.ranks} zigzag ranks cut each into "
                f"{self.align} chunks; collate with align={math.lcm(batch.align, self.align)}"
            )
        self.check_capacity(batch.num_slots)
        return SCHEMES[self.scheme](self.boundaries(batch), self.ranks)

    def slots(self, batch: Batch) -> list[np.ndarray]:
        """int64[T / ranks] for each rank: its slots of the batch, ascending.

        Example:
            >>> from padless import collate
            >>> [s.tolist() for s in ContextParallel(ranks=2).slots(collate([[7] * 3, [8] * 4], align=4))]
            [[0, 3, 4, 7], [1, 2, 5, 6]]
        """
        owners = self.owners(batch)
        return [np.flatnonzero(owners == rank) for rank in range(self.ranks)]

    def gather(self, parts: Any, batch: Batch) -> Any:
        """Undo the division: the ranks' arrays `[T / ranks, ...]` as one `[T, ...]`.

        Args:
            parts: One array or tensor per rank, in the order of ranks.
            batch: The batch that was divided.

        Raises:
            PadlessError: When the parts are not one per rank, each of T / ranks slots.

        Example:
            >>> from padless import collate
            >>> batch = collate([[5, 6, 7], [8, 9]], align=4)
            >>> cp = ContextParallel(ranks=2)
            >>> cp.gather([batch.input_ids[slots] for slots in cp.slots(batch)], batch).tolist()
            [5, 6, 7, 0, 8, 9, 0, 0]
        """
        parts = list(parts)
        share = batch.num_slots // self.ranks
        found = [int(part.shape[0]) for part in parts]
        if found != [share] * self.ranks:
            raise PadlessError(f"parts of {found} slots: expected {self.ranks} parts of {share:,} slots, rank by rank")
        order = np.argsort(np.concatenate(self.slots(batch)), kind="stable")
        if isinstance(parts[0], np.ndarray):
            return np.concatenate(parts)[order]
        import torch

        return torch.cat(parts)[torch.from_numpy(order).to(parts[0].device)]
