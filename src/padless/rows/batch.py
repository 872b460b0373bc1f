"""The batch: what a model and a kernel see."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from padless.errors import PadlessError
from padless.rows import tensors
from padless.rows.layout import cover
from padless.rows.rule import Rule
from padless.rows.summary import summarise
from padless.rows.validate import check

IGNORED = -100
"""The label of a position that has no target, as PyTorch's cross entropy has it."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Batch:
    """The rows of one micro-batch, flattened to T slots, with the boundaries of their segments.

    Arrays are numpy when collated and torch tensors after `.torch()`. What follows from other fields is not stored
    (`segment_ids`, `lengths`), so it cannot disagree. An impossible batch raises when it is made.

    Attributes:
        input_ids: int[T]; padding slots hold the pad id.
        labels: int[T], unshifted: token i itself, or -100 where it is no target. The first token of every segment and
            every padding slot is -100.
        position_ids: int[T], or int[A, T] with A axes (M-RoPE), of which axis 0 is the text position.
        cu_seqlens: int32[S + 1], prefix sums of real lengths. Static batches repeat the last value up to their size.
        cu_seqlens_padded: int32[S + 1], first slot of each segment; the last value ends the last segment's aligned
            extent. Differs from `cu_seqlens` iff there is padding in front of some segment's end.
        row_offsets: int32[R + 1], row r holds segments `row_offsets[r]:row_offsets[r + 1]`.
        sample_ids: int64[S], which sample a segment comes from; -1 where nobody said.
        rule: Who may attend to whom inside a segment.
        ranks: int32[T] for rules that need them (`rule.has_ranks`), non-decreasing inside a segment unless the rule
            has a visibility table; -1 on padding.
        loss_weights: float32[T] or None; 0 wherever there is no target.
        max_seqlen: Longest segment in real tokens, or more (static batches give the largest there may be).
        num_targets: Number of labels that are not -100: the denominator of the token mean.
        align: Every segment starts at a multiple of this.
        static_segments: Of a batch of static shapes, the segments that `cu_seqlens` has entries for; None says that
            shapes follow the data.
        targets_lost: Targets that are masked only because they became the first token of a segment (split samples).
        media: Extents of images and the like, carried along untouched.

    Example:
        >>> from padless.rows import collate
        >>> batch = collate([[5, 6, 7], [8, 9]], align=4)
        >>> batch
        Batch(1 row, 2 segments, 5 tokens in 8 slots, 3 targets, causal)
        >>> batch.segment_ids
        array([1, 1, 1, 0, 2, 2, 0, 0], dtype=int32)
        >>> batch.labels
        array([-100,    6,    7, -100, -100,    9, -100, -100])
        >>> [ids.tolist() for ids in batch.unpack(batch.input_ids)]
        [[5, 6, 7], [8, 9]]
    """

    input_ids: Any
    labels: Any
    position_ids: Any
    cu_seqlens: Any
    cu_seqlens_padded: Any
    row_offsets: Any
    sample_ids: Any
    rule: Rule = field(default_factory=Rule)
    ranks: Any = None
    loss_weights: Any = None
    max_seqlen: int = -1
    num_targets: int = -1
    align: int = 1
    static_segments: int | None = None
    targets_lost: int = 0
    media: Mapping[str, Any] | None = None

    def __post_init__(self):
        if self.max_seqlen < 0:
            object.__setattr__(self, "max_seqlen", int(self.lengths.max()))
        if self.num_targets < 0:
            object.__setattr__(self, "num_targets", int((self.labels != IGNORED).sum()))
        check(self)

    # Sizes ----------------------------------------------------------------------------------------------------------

    @property
    def num_slots(self) -> int:
        """T: real tokens and padding together."""
        return self.input_ids.shape[0]

    @property
    def num_segments(self) -> int:
        """S."""
        return self.sample_ids.shape[0]

    @property
    def num_rows(self) -> int:
        """R."""
        return self.row_offsets.shape[0] - 1

    @cached_property
    def num_tokens(self) -> int:
        """Real tokens; reading it from tensors on a device waits for the device once."""
        return int(self.cu_seqlens[-1])

    @property
    def lengths(self) -> Any:
        """int[S], real tokens per segment."""
        return self.cu_seqlens[1 : self.num_segments + 1] - self.cu_seqlens[: self.num_segments]

    @property
    def starts(self) -> Any:
        """int32[S], the first slot of each segment."""
        return self.cu_seqlens_padded[: self.num_segments]

    @cached_property
    def segment_ids(self) -> Any:
        """int32[T]: 1..S over the whole batch, 0 on padding, which belongs to no segment."""
        cuts, ids = cover(tensors.host(self.starts), tensors.host(self.lengths), self.num_slots)
        return tensors.like(np.repeat(ids, np.diff(cuts)), self.input_ids)

    @property
    def contiguous(self) -> bool:
        """Whether the real tokens are exactly the first `num_tokens` slots, so that no kernel needs a gather."""
        return bool((self.cu_seqlens[: self.num_segments] == self.starts).all())

    def covering_cu_seqlens(self) -> tuple[Any, Any]:
        """Boundaries for kernels that must cover every slot, padding included as extra short segments.

        Returns:
            `(cu_seqlens, ids)`: int32[P + 1] from 0 to T, and int32[P] which segment (1..S) each piece is, 0 for
            padding. Real segments keep their exact lengths; padding is cut into pieces of at most
            `padless.rows.layout.PAD_SEGMENT` slots. In static batches P is the same whatever is in them: empty pieces
            at T fill it up.
        """
        starts, lengths = tensors.host(self.starts), tensors.host(self.lengths)
        cuts, ids = cover(starts, lengths, self.num_slots, most=self.static_segments)
        return tensors.like(cuts.astype(np.int32), self.input_ids), tensors.like(ids, self.input_ids)

    # Views ----------------------------------------------------------------------------------------------------------

    def unpack(self, x: Any) -> list[Any]:
        """Split a per-token array into one piece per segment, real tokens only, in the order of `sample_ids`.

        Args:
            x: Array or tensor whose first axis, or whose first two axes together, run over the T slots: `[T, ...]`,
                a model's `[1, T, ...]`, or a rectangle `[R, T / R, ...]`.

        Returns:
            S views `[length, ...]`. The pieces of a split sample are separate entries with the same sample id.

        Raises:
            PadlessError: When `x` does not run over the slots of this batch.
        """
        flat = self._flat(x)
        lengths = self.lengths.tolist()
        return [flat[start : start + n] for start, n in zip(self.starts.tolist(), lengths, strict=True)]

    def rectangle(self, x: Any) -> Any:
        """View a per-token array `[T, ...]` as `[R, T / R, ...]`, for kernels that need rows of one width.

        Raises:
            PadlessError: When the rows are not of one width, which needs `collate(..., capacity=...)`.
        """
        flat = self._flat(x)
        width, rest = divmod(self.num_slots, self.num_rows)
        begins = tensors.host(self.starts)[tensors.host(self.row_offsets)[:-1]]
        if rest or (begins != np.arange(self.num_rows) * width).any():
            raise PadlessError(
                f"rows begin at slots {begins[:5].tolist()}... of {self.num_slots}: they have no common width, so "
                f"there is no rectangle; collate with capacity=..."
            )
        return flat.reshape((self.num_rows, width, *flat.shape[1:]))

    def _flat(self, x: Any) -> Any:
        if x.shape[0] == self.num_slots:
            return x
        if len(x.shape) > 1 and x.shape[0] * x.shape[1] == self.num_slots:
            return x.reshape((self.num_slots, *x.shape[2:]))
        raise PadlessError(
            f"an array of shape {tuple(x.shape)} does not run over the {self.num_slots} slots of this batch; "
            f"give [{self.num_slots}, ...] or [1, {self.num_slots}, ...]"
        )

    def shifted_labels(self) -> Any:
        """int[T]: the label of slot i is the token at i + 1 of the same segment, or -100; for frameworks that shift.

        No boundary needs a look: each segment's first label and all padding are -100, and those are exactly what a
        plain shift would carry across.
        """
        return tensors.shift_left(self.labels, IGNORED)

    def shifted_loss_weights(self) -> Any:
        """float32[T]: `loss_weights` moved as `shifted_labels()` moves labels; None when there are none."""
        return None if self.loss_weights is None else tensors.shift_left(self.loss_weights, 0)

    # Tensors --------------------------------------------------------------------------------------------------------

    def torch(self, device: Any = None) -> "Batch":
        """The same batch as torch tensors, sharing memory with the arrays unless `device` asks for another place."""
        return tensors.convert(self, lambda array: tensors.to_torch(array, device))

    def to(self, device: Any, *, non_blocking: bool = False) -> "Batch":
        """The same batch with its tensors on `device`."""
        return tensors.convert(self, lambda array: tensors.to_torch(array, device, non_blocking))

    def pin_memory(self) -> "Batch":
        """The same batch with its tensors in page-locked memory; `DataLoader(pin_memory=True)` calls this."""
        return tensors.convert(self, lambda array: tensors.to_torch(array).pin_memory())

    def numpy(self) -> "Batch":
        """The same batch as numpy arrays, copied to the host where they are not."""
        return tensors.convert(self, tensors.host)

    # Words ----------------------------------------------------------------------------------------------------------

    def summary(self) -> str:
        """A few lines: sizes, where the padding is, targets, the rule."""
        return summarise(self)

    def __repr__(self) -> str:
        def count(n: int, noun: str) -> str:
            return f"{n:,} {noun}" + "s" * (n != 1)

        parts = [
            count(self.num_rows, "row"),
            count(self.num_segments, "segment"),
            f"{count(self.num_tokens, 'token')} in {count(self.num_slots, 'slot')}",
            count(self.num_targets, "target"),
            repr(self.rule).removeprefix("Rule(").removesuffix(")"),
        ]
        return f"Batch({', '.join(parts)})"
