"""What one context-parallel rank sees of a batch."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from padless.errors import PadlessError
from padless.rows import IGNORED, Batch
from padless.rows.tensors import host, like
from padless.training.context_parallel.rolls import rolled
from padless.training.context_parallel.spec import ContextParallel


@dataclass(frozen=True, kw_only=True, eq=False)
class Shard:
    """One rank's slots of a batch: t = T / ranks of them, arrays or tensors as in the batch.

    Attributes:
        batch: The whole batch; every rank of the group holds the same.
        parallel: How it is divided.
        rank: Which part this is.

    Example:
        >>> from padless import collate
        >>> batch = collate([[5, 6, 7, 8], [9, 10, 11]], align=4)
        >>> part = Shard(batch=batch, parallel=ContextParallel(ranks=2), rank=1)
        >>> part.input_ids.tolist(), part.next_labels().tolist()
        ([6, 7, 10, 11], [7, 8, 11, -100])
        >>> part.position_ids.tolist(), part.cu_seqlens.tolist(), part.num_targets
        ([1, 2, 1, 2], [0, 2, 4], 3)
    """

    batch: Batch
    parallel: ContextParallel
    rank: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.parallel.ranks:
            raise PadlessError(f"rank={self.rank} of {self.parallel.ranks} context-parallel ranks: expected 0 <= rank")
        _ = self.slots  # a batch that cannot be divided is refused here, not in the first layer

    @cached_property
    def slots(self) -> np.ndarray:
        """int64[t]: which slots of the batch these are, ascending."""
        return np.flatnonzero(self.parallel.owners(self.batch) == self.rank)

    def take(self, x: Any) -> Any:
        """This rank's part of a per-slot array: `[T, ...]` to `[t, ...]`.

        Raises:
            PadlessError: When `x` does not run over the slots of the batch.
        """
        if x.shape[0] != self.batch.num_slots:
            raise PadlessError(f"an array of shape {tuple(x.shape)} does not run over {self.batch.num_slots:,} slots")
        return x[like(self.slots, x)]

    @property
    def input_ids(self) -> Any:
        """int[t]."""
        return self.take(self.batch.input_ids)

    def next_labels(self, ahead: int = 1) -> Any:
        """int[t], the label of the token `ahead` places after each slot inside its segment, or -100.

        Labels move before the row is divided, because the next token may lie on another rank. `ahead=2` is what the
        first extra head of multi-token prediction is trained on.
        """
        return self.take(rolled(self.batch, self.batch.labels, by=ahead, fill=IGNORED))

    def next_weights(self, ahead: int = 1) -> Any:
        """float32[t]: the loss weight of each of `next_labels(ahead)`; None when the batch has none."""
        weights = self.batch.loss_weights
        return None if weights is None else self.take(rolled(self.batch, weights, by=ahead))

    @property
    def position_ids(self) -> Any:
        """int[t] or int[A, t]: the positions that these tokens have in the whole row."""
        positions = self.batch.position_ids
        return positions[..., like(self.slots, positions)]

    @property
    def segment_ids(self) -> Any:
        """int32[t]: as in the batch, 0 on padding."""
        return self.take(self.batch.segment_ids)

    @property
    def cu_seqlens(self) -> Any:
        """int32[P + 1]: where the parts of the row's pieces begin and end among these slots.

        Zigzag gives the physical boundaries of the whole row (`cu_seqlens_padded`, what `PackedSeqParams` takes)
        divided by the number of ranks; other schemes may give a piece nothing on some rank.
        """
        ends = np.searchsorted(self.slots, self.parallel.boundaries(self.batch))
        return like(ends.astype(np.int32), self.batch.input_ids)

    @property
    def num_targets(self) -> int:
        """Targets among these slots. Never divide a loss by this: ranks hold different numbers of them."""
        return int((host(self.next_labels()) != IGNORED).sum())

    @property
    def num_slots(self) -> int:
        """How many they are: t = T / ranks."""
        return len(self.slots)
