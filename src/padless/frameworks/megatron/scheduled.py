"""One sample each, packed over DP x CP ranks per global batch: the role of Megatron's VarlenDataset."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from padless.corpus import TokenStore
from padless.errors import PadlessError
from padless.frameworks.megatron.dataset import MegatronDataset
from padless.planning import PlanSpec, plan_with
from padless.rows import Batch
from padless.training import RowSampler
from padless.training.scheduling import Samples, SchedulingSpec, schedule


def scheduled(
    store: TokenStore | str | Path,
    max_seq_len: int,
    *,
    oversize: str = "error",
    pad_granularity: int = 1,
    eod_id: int | None = None,
    eod_loss: bool = True,
    seed: int = 0,
    **options: Any,
) -> MegatronDataset:
    """Every sample as a row of its own, as long as it is; `dataset[i]` is one sample as a `Batch`.

    Args:
        store: A store whose samples end with EOD; it needs no plan.
        max_seq_len: Slots that one sample may take at most.
        oversize: What becomes of a longer one: `error`, `truncate` (its first tokens; no EOD is put in place of the
            one that was cut), `split` or `drop`. `dataset.plan.accounting` counts.
        pad_granularity: Each sample takes a multiple of this many slots: 2 * cp for context parallel.
        eod_id: As in `MegatronDataset`.
        eod_loss: As in `MegatronDataset`.
        seed: Of the order of the samples.
        **options: As in `PackedDataset`.

    Example:
        >>> import tempfile
        >>> from padless.frameworks.megatron import with_eod
        >>> store = TokenStore.write(tempfile.mkdtemp(), with_eod([[5, 6, 7], [8]], 2), vocab_size=10, eod_id=2)
        >>> dataset = scheduled(store, 8, pad_granularity=4, eod_id=2)
        >>> sorted((row.num_tokens, row.num_slots) for row in dataset)
        [(2, 4), (4, 4)]
    """
    opened = store if isinstance(store, TokenStore) else TokenStore(store)
    spec = PlanSpec(capacity=max_seq_len, strategy="none", align=pad_granularity, oversize=oversize, seed=seed)
    return MegatronDataset(opened, plan_with(opened.lengths, spec), eod_id=eod_id, eod_loss=eod_loss, **options)


class MicroBatch(NamedTuple):
    """What one rank runs at once.

    Attributes:
        number: Of the micro-batch in its global batch. Ranks run theirs in ascending order.
        batch: The samples, packed, before they are cut over the group; or what `collate` made of them.
        group: The ranks of DP x CP that share them by context parallelism; `range(r, r + 1)` is a rank alone.
    """

    number: int
    batch: Any
    group: range


class ScheduledBatches:
    """The micro-batches of one rank, global batch by global batch.

    Every rank asks the same sampler and the same scheduler, so each knows the whole schedule without a collective.
    Every sample of an epoch is in one micro-batch of one group: in the last global batch nothing waits.

    Args:
        sampler: Over a `scheduled` data set, with `ranks=1, rank=0` on every rank: a step is a global batch. It keeps
            the order.
        spec: The cluster and its limits; `align` and `2 * cp` decide the slots that a sample takes. With
            `packed_sequences` every micro-batch of a group of one size has the same shapes, for CUDA graphs.
        rank: Which of the `dp * cp` ranks this is; its data-parallel rank is `rank // cp`.
        strategy: A name of `padless.training.scheduling.SCHEDULERS`.
        collate: From a micro-batch's `Batch` and group to what a step takes; the `Batch` itself unless given.

    Raises:
        PadlessError: When rows are packed already, or the sampler deals them to ranks itself.

    Example:
        >>> import tempfile
        >>> from padless.frameworks.megatron import with_eod
        >>> from padless.training import Cost
        >>> samples = with_eod([[5, 6, 7], [8], [9, 9], [1]], 2)
        >>> store = TokenStore.write(tempfile.mkdtemp(), samples, vocab_size=10, eod_id=2)
        >>> sampler = RowSampler(scheduled(store, 8, eod_id=2), rows=4, drop_last=True, ranks=1, rank=0)
        >>> spec = SchedulingSpec(dp=2, max_seqlen_per_rank=8, cost=Cost(linear=1))
        >>> [step] = ScheduledBatches(sampler, spec, rank=0)
        >>> [(part.number, part.batch.num_segments, part.group) for part in step]
        [(0, 2, range(0, 1))]
    """

    def __init__(
        self,
        sampler: RowSampler,
        spec: SchedulingSpec,
        rank: int,
        *,
        strategy: str = "dp-balanced",
        collate: Callable[[Batch, range], Any] = lambda batch, group: batch,
    ) -> None:
        dataset = sampler.dataset
        if not isinstance(dataset, MegatronDataset) or dataset.plan.num_segments != dataset.plan.num_rows:
            raise PadlessError(
                "a scheduler packs samples, and the rows of this data set are packed or are no samples with EOD; give "
                "a sampler over `scheduled(store, ...)`"
            )
        if sampler.ranks != 1 or sampler.spec.replan:
            raise PadlessError(
                f"the sampler has ranks={sampler.ranks}, replan={sampler.spec.replan}, and a scheduler deals samples "
                "out itself; give ranks=1, rank=0, replan=False, and the samples of a whole global batch as rows"
            )
        if not 0 <= rank < spec.ranks:
            raise PadlessError(f"rank={rank} of {spec.ranks} ranks: expected 0 <= rank < {spec.ranks}")
        self.sampler = sampler
        self.spec = spec
        self.rank = rank
        self.strategy = strategy
        self.collate = collate
        self._dataset = dataset
        self._rows: dict[int, int] = {}  # of the samples that are on their way, by their running number
        self._waiting = Samples.none()
        self._count = 0

    def __len__(self) -> int:
        """Global batches in an epoch."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[list[MicroBatch]]:
        for rows in self.sampler:
            done = self.sampler.state_dict()["step"] or len(self)
            if done == 1:
                self._rows, self._waiting = {}, Samples.none()
            yield self._deal(rows, last=done == len(self))

    def _deal(self, rows: Any, *, last: bool) -> list[MicroBatch]:
        ids = np.arange(self._count, self._count + len(rows))
        self._rows |= dict(zip(ids.tolist(), rows, strict=True))
        self._count += len(rows)
        spec = dataclasses.replace(self.spec, max_delay=0) if last else self.spec
        lengths = self._dataset.plan.lengths[rows]
        made = schedule(lengths, spec, strategy=self.strategy, ids=ids, waiting=self._waiting)
        mine = [self._micro_batch(*share) for share in made.of_rank(self.rank)]
        self._waiting = made.waiting
        self._rows = {number: self._rows[number] for number in made.waiting.ids.tolist()}
        return mine

    def _micro_batch(self, number: int, ids: np.ndarray, group: range) -> MicroBatch:
        fixed = self.spec.packed_sequences
        dataset = self._dataset.laid_out(
            align=self.spec.unit_of(len(group)),
            static=None if fixed is None else (self.spec.max_seqlen_per_rank * len(group), fixed),
        )
        batch = dataset.__getitems__([self._rows[number] for number in ids.tolist()])
        return MicroBatch(number, self.collate(batch, group), group)

    def state_dict(self) -> dict[str, Any]:
        """Where we stand, the samples that wait included; the same on every rank."""
        waiting = self._waiting
        return {
            "sampler": self.sampler.state_dict(),
            "waiting": [
                {"row": self._rows[number], "length": length, "age": age}
                for number, length, age in zip(
                    waiting.ids.tolist(), waiting.lengths.tolist(), waiting.ages.tolist(), strict=True
                )
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was saved; another number of ranks is fine.

        Raises:
            PadlessError: As `RowSampler.load_state_dict`.
        """
        self.sampler.load_state_dict(state["sampler"])
        waiting = state["waiting"]
        self._count = len(waiting)
        self._rows = {number: entry["row"] for number, entry in enumerate(waiting)}
        self._waiting = Samples(
            ids=np.arange(len(waiting)),
            lengths=np.array([entry["length"] for entry in waiting], np.int64),
            ages=np.array([entry["age"] for entry in waiting], np.int64),
        )
