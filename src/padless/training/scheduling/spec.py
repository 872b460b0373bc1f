"""The ranks that share a global batch, and what each of them can hold."""

import dataclasses
import math
import numbers
from typing import Literal

import numpy as np

from padless.errors import PadlessError
from padless.training.balance import Cost

WORK_BITS = 40
"""Works are whole numbers below 2**40 each, so that sums of a million are exact and equal on every machine."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchedulingSpec:
    """All that decides who gets which sample of a global batch, beside the lengths.

    Args:
        dp: Data-parallel ranks.
        cp: Context-parallel ranks that share each sample; `dynamic-cp` forms its groups from all `dp * cp` of them.
        pp: Pipeline stages. Every rank then gets at least that many micro-batches where samples suffice, so that no
            stage waits for want of work.
        max_seqlen_per_rank: Most slots of a micro-batch on one rank (`max_seqlen_per_dp_cp_rank`).
        cost: What a sample costs: `linear * slots + quadratic * slots ** 2`.
        max_num_seqs: Most samples in a micro-batch.
        packed_sequences: The fixed number of sequences of a CUDA graph (`thd_max_packed_sequences`); one of them is
            kept for the padding behind the last sample.
        align: Each sample takes a multiple of this many slots (`pad_granularity`, FP8), and of `2 * cp` in any case.
        microbatch_multiple: The number of micro-batches of a rank is a multiple of this
            (`microbatch_group_size_per_vp_stage`).
        empty: `"error"` refuses a batch too small to give every rank a sample in each micro-batch; `"allow"` leaves
            such micro-batches out of the result, and the caller runs padding in their place.
        sizes: Sizes of groups that `dynamic-cp` may form: powers of two (and all ranks), for which Megatron-Core
            has process groups, or any.
        max_delay: Most global batches that `wlb` makes a sample wait.
        outliers: Ascending lengths from which `wlb` lets samples wait, one queue for each. None: those that alone
            cost more than the mean micro-batch.

    Raises:
        PadlessError: For numbers that no cluster has.

    Example:
        >>> spec = SchedulingSpec(dp=4, cp=2, max_seqlen_per_rank=4096, cost=Cost(linear=49152, quadratic=1), align=16)
        >>> spec.ranks, spec.capacity, spec.unit
        (8, 8192, 16)
    """

    dp: int
    cp: int = 1
    pp: int = 1
    max_seqlen_per_rank: int
    cost: Cost
    max_num_seqs: int | None = None
    packed_sequences: int | None = None
    align: int = 1
    microbatch_multiple: int = 1
    empty: Literal["error", "allow"] = "error"
    sizes: Literal["power-of-two", "free"] = "power-of-two"
    max_delay: int = 1
    outliers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("dp", "cp", "pp", "max_seqlen_per_rank", "align", "microbatch_multiple"):
            _at_least(name, getattr(self, name), 1)
        _at_least("max_num_seqs", self.max_num_seqs, 1)
        _at_least("packed_sequences", self.packed_sequences, 2)
        _at_least("max_delay", self.max_delay, 0)
        for name, known in (("empty", ("error", "allow")), ("sizes", ("power-of-two", "free"))):
            if getattr(self, name) not in known:
                raise PadlessError(f"{name}={getattr(self, name)!r}: expected {' or '.join(map(repr, known))}")
        if self.outliers is not None and (not self.outliers or list(self.outliers) != sorted(set(self.outliers))):
            raise PadlessError(f"outliers={self.outliers}: expected ascending lengths, e.g. (16384, 65536), or None")
        if self.max_seqlen_per_rank < self.unit_of(self.cp) // self.cp:
            raise PadlessError(
                f"max_seqlen_per_rank={self.max_seqlen_per_rank} holds no sample: each takes a multiple of {self.unit} "
                f"slots over {self.cp} ranks; give at least {-(-self.unit // self.cp)}"
            )

    @property
    def ranks(self) -> int:
        """Data- and context-parallel ranks together: those that share samples out."""
        return self.dp * self.cp

    @property
    def capacity(self) -> int:
        """Slots of a micro-batch over its `cp` ranks."""
        return self.max_seqlen_per_rank * self.cp

    @property
    def unit(self) -> int:
        """What each sample's slots are a multiple of."""
        return self.unit_of(self.cp)

    @property
    def in_step(self) -> bool:
        """Whether all ranks run the same number of micro-batches: pipelines do."""
        return self.pp > 1 or self.microbatch_multiple > 1

    @property
    def most(self) -> int | None:
        """Most samples in a micro-batch, or None."""
        limits = [self.max_num_seqs, None if self.packed_sequences is None else self.packed_sequences - 1]
        return min((limit for limit in limits if limit is not None), default=None)

    def unit_of(self, ranks: int) -> int:
        """What a sample's slots are a multiple of when `ranks` ranks share it: `2 * ranks` chunks, and `align`."""
        return math.lcm(self.align, 2 * ranks if ranks > 1 else 1)

    def padded(self, lengths: np.ndarray) -> np.ndarray:
        """int64[N]: slots that samples of these lengths take over `cp` ranks.

        Example:
            >>> spec = SchedulingSpec(dp=1, cp=2, max_seqlen_per_rank=64, cost=Cost(linear=1))
            >>> spec.padded(np.array([1, 4, 5])).tolist()
            [4, 4, 8]
        """
        return -(-lengths // self.unit) * self.unit

    def works(self, slots: np.ndarray, *, largest: int | None = None) -> np.ndarray:
        """int64[N], what samples of so many slots cost, scaled so that one of `largest` slots is just below 2**40.

        Whole numbers, because every rank must come to the same schedule and the last bit of a floating-point sum
        depends on the machine.
        """
        sizes = np.append(slots, slots.max() if largest is None else largest).astype(np.float64)
        costs = self.cost.linear * sizes + self.cost.quadratic * sizes * sizes
        _, exponent = math.frexp(float(costs[-1]))
        return np.maximum(np.ldexp(costs[:-1], WORK_BITS - exponent), 1).astype(np.int64)


def _at_least(name: str, value: int | None, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise PadlessError(f"{name}={value!r}: expected a whole number, at least {least}")
