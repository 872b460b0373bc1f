"""Who gets which sample of a global batch."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from padless.errors import PadlessError, ViolationError
from padless.lengths.checks import as_lengths
from padless.training.scheduling.spec import SchedulingSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """Samples that want a place.

    Attributes:
        ids: int64[N], names that mean the same on every rank; none twice.
        lengths: int64[N], real tokens.
        ages: int64[N], global batches that each has waited.
    """

    ids: np.ndarray
    lengths: np.ndarray
    ages: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def none(cls) -> "Samples":
        """No sample at all."""
        return cls(ids=np.empty(0, np.int64), lengths=np.empty(0, np.int64), ages=np.empty(0, np.int64))

    @classmethod
    def of(cls, lengths: np.ndarray | list[int], ids: np.ndarray | list[int] | None = None) -> "Samples":
        """Samples that have just arrived; their places in the list are their ids unless ids are given.

        Raises:
            PadlessError: For lengths that are none, ids that repeat, or not one id per length.
        """
        sizes = as_lengths(lengths).astype(np.int64)
        names = np.arange(len(sizes)) if ids is None else np.asarray(ids, dtype=np.int64)
        if names.shape != sizes.shape:
            raise PadlessError(f"{len(names):,} ids for {len(sizes):,} lengths: expected one for each")
        return cls(ids=names, lengths=sizes, ages=np.zeros(len(sizes), np.int64))

    def take(self, index: np.ndarray) -> "Samples":
        """Some of them."""
        return Samples(ids=self.ids[index], lengths=self.lengths[index], ages=self.ages[index])

    def plus(self, other: "Samples") -> "Samples":
        """These, then the others.

        Raises:
            PadlessError: When a sample is in both.
        """
        ids = np.concatenate([self.ids, other.ids])
        if len(np.unique(ids)) != len(ids):
            values, counts = np.unique(ids, return_counts=True)
            raise PadlessError(
                f"sample ids {values[counts > 1][:5].tolist()} come twice, so nobody could say who has which; with "
                "waiting samples, number those of all global batches on"
            )
        lengths, ages = np.concatenate([self.lengths, other.lengths]), np.concatenate([self.ages, other.ages])
        return Samples(ids=ids, lengths=lengths, ages=ages)

    def older(self) -> "Samples":
        """The same, one global batch later."""
        return Samples(ids=self.ids, lengths=self.lengths, ages=self.ages + 1)


class Bin(NamedTuple):
    """One micro-batch of one group of ranks: samples `members` run on ranks `first : first + width`."""

    microbatch: int
    first: int
    width: int
    members: list[int]


class Share(NamedTuple):
    """One micro-batch as one rank sees it.

    Attributes:
        microbatch: Its number; a rank runs its own in ascending order.
        ids: int64[n], the samples, in the order in which they are packed.
        group: The ranks that share them by context parallelism; `range(r, r + 1)` is a rank alone.
    """

    microbatch: int
    ids: np.ndarray
    group: range


@dataclass(frozen=True, kw_only=True, eq=False)
class Assignment:
    """A global batch, shared out: bins of samples, each run by a group of neighbouring ranks as one micro-batch.

    Rank r of the `dp * cp` is context-parallel rank `r % cp` of data-parallel rank `r // cp`, as Megatron-Core numbers
    them. Groups of one micro-batch have no rank in common, and every rank runs its micro-batches in ascending order,
    so that no two groups wait for each other.

    Attributes:
        spec: What it was made for.
        samples: The samples placed, bin after bin.
        bin_offsets: int64[B + 1], bin b holds samples `bin_offsets[b] : bin_offsets[b + 1]`.
        microbatch: int64[B], ascending.
        first_rank: int64[B].
        width: int64[B], ranks of the group.
        waiting: Samples that wait for a later global batch; give them to the next call.
    """

    spec: SchedulingSpec
    samples: Samples
    bin_offsets: np.ndarray
    microbatch: np.ndarray
    first_rank: np.ndarray
    width: np.ndarray
    waiting: Samples

    @classmethod
    def of(
        cls, spec: SchedulingSpec, samples: Samples, bins: list[Bin], waiting: Samples | None = None
    ) -> "Assignment":
        """From bins whose members are places in `samples`."""
        bins = sorted(bins, key=lambda b: (b.microbatch, b.first))
        order = np.array([i for b in bins for i in b.members], dtype=np.int64)
        return cls(
            spec=spec,
            samples=samples.take(order),
            bin_offsets=np.cumsum([0, *(len(b.members) for b in bins)], dtype=np.int64),
            microbatch=np.array([b.microbatch for b in bins], dtype=np.int64),
            first_rank=np.array([b.first for b in bins], dtype=np.int64),
            width=np.array([b.width for b in bins], dtype=np.int64),
            waiting=Samples.none() if waiting is None else waiting,
        )

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of the rank that runs most, up to the multiple that the spec wants."""
        multiple = self.spec.microbatch_multiple
        return -(-(int(self.microbatch.max(initial=-1)) + 1) // multiple) * multiple

    @property
    def num_bins(self) -> int:
        """Bins over all ranks."""
        return len(self.microbatch)

    @property
    def num_empty(self) -> int:
        """Places of a rank in a micro-batch that hold no sample; where ranks run in step, padding runs there."""
        return self.num_microbatches * self.spec.ranks - int(self.width.sum())

    @cached_property
    def slots(self) -> np.ndarray:
        """int64[N]: slots that each placed sample takes, over all ranks of its group."""
        units = {int(w): self.spec.unit_of(int(w)) for w in np.unique(self.width)}
        unit = np.repeat([units[int(w)] for w in self.width], np.diff(self.bin_offsets)).astype(np.int64)
        return -(-self.samples.lengths // unit) * unit

    @cached_property
    def bin_slots(self) -> np.ndarray:
        """int64[B]: slots of each bin on one of its ranks."""
        return self._per_bin(self.slots.astype(np.float64)).astype(np.int64) // self.width

    @cached_property
    def bin_squares(self) -> np.ndarray:
        """float64[B]: sum of squared slots of each bin, on one of its ranks."""
        return self._per_bin(np.square(self.slots.astype(np.float64))) / self.width

    @property
    def bin_works(self) -> np.ndarray:
        """float64[B]: what each bin costs each of its ranks, in the unit of the cost."""
        return self.spec.cost.linear * self.bin_slots + self.spec.cost.quadratic * self.bin_squares

    @property
    def works(self) -> np.ndarray:
        """float64[ranks]: what each rank's samples cost it."""
        return self.over_ranks(self.bin_works)

    @property
    def imbalance(self) -> float:
        """The dearest rank's work over the mean rank's; 1.0 is perfect."""
        works = self.works
        return float(works.max() / works.mean())

    @property
    def microbatch_imbalance(self) -> float:
        """The dearest micro-batch over the mean one, what a pipeline waits for (WLB-LLM's measure); 1.0 is perfect."""
        places = self.num_microbatches * self.spec.ranks
        return float(self.bin_works.max() * places / self.works.sum())

    def over_ranks(self, per_bin: np.ndarray) -> np.ndarray:
        """float64[ranks]: sums over the bins that each rank takes part in."""
        steps = np.zeros(self.spec.ranks + 1)
        np.add.at(steps, self.first_rank, per_bin)
        np.add.at(steps, self.first_rank + self.width, -per_bin)
        return np.cumsum(steps[:-1])

    def of_rank(self, rank: int) -> list[Share]:
        """What one rank runs, in order.

        Raises:
            PadlessError: When there is no such rank.
        """
        if not 0 <= rank < self.spec.ranks:
            raise PadlessError(f"rank={rank} of {self.spec.ranks} ranks: expected 0 <= rank < {self.spec.ranks}")
        mine = np.flatnonzero((self.first_rank <= rank) & (rank < self.first_rank + self.width))
        return [
            Share(
                int(self.microbatch[b]),
                self.samples.ids[self.bin_offsets[b] : self.bin_offsets[b + 1]],
                range(int(self.first_rank[b]), int(self.first_rank[b] + self.width[b])),
            )
            for b in mine
        ]

    def _per_bin(self, values: np.ndarray) -> np.ndarray:
        bin_of = np.repeat(np.arange(self.num_bins), np.diff(self.bin_offsets))
        return np.bincount(bin_of, weights=values, minlength=self.num_bins)


def check_assignment(made: Assignment, wanted: Samples) -> None:
    """Every promise of an assignment, checked against the samples that it was made from.

    Raises:
        ViolationError: A sample is lost or comes twice, a micro-batch is too large, two groups of one micro-batch
            share a rank, a rank has nothing to do where ranks run in step, or somebody has waited too long.
    """
    spec, waiting = made.spec, made.waiting
    given = made.samples.plus(waiting)
    if not np.array_equal(np.sort(given.ids), np.sort(wanted.ids)):
        raise ViolationError(f"{len(wanted):,} samples came in, {len(made.samples):,} placed and {len(waiting):,} wait")
    order, before = np.argsort(given.ids), np.argsort(wanted.ids)
    if not np.array_equal(given.lengths[order], wanted.lengths[before]):
        raise ViolationError("a sample's length changed on the way")
    sizes = np.diff(made.bin_offsets)
    if made.num_bins and (sizes.min() < 1 or made.bin_slots.max() > spec.max_seqlen_per_rank):
        raise ViolationError(
            f"a bin of {made.bin_slots.max():,} slots a rank, {spec.max_seqlen_per_rank:,} are allowed"
        )
    if spec.most is not None and sizes.max(initial=0) > spec.most:
        raise ViolationError(f"a bin of {sizes.max()} samples, {spec.most} are allowed")
    for number in np.unique(made.microbatch):
        mine = made.microbatch == number
        first, width = made.first_rank[mine], made.width[mine]
        ends = first + width
        if first[0] < 0 or ends[-1] > spec.ranks or (ends[:-1] > first[1:]).any():
            raise ViolationError(f"groups of micro-batch {number} share a rank, or name one that is not there")
    if spec.empty == "error" and spec.in_step and made.num_empty:
        raise ViolationError(f"{made.num_empty} places in {made.num_microbatches} micro-batches run in step are empty")
    if spec.empty == "error" and len(made.samples) and made.over_ranks(np.ones(made.num_bins)).min() < 1:
        raise ViolationError("a rank without any sample")
    if waiting.ages.max(initial=0) > spec.max_delay:
        raise ViolationError(f"a sample has waited {waiting.ages.max()} batches, {spec.max_delay} are allowed")
