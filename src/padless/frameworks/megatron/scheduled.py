"""One sample each, packed over data-parallel ranks per global batch: the role of Megatron's VarlenDataset."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from padless.corpus import TokenStore
from padless.errors import PadlessError, ViolationError
from padless.frameworks.megatron.dataset import MegatronDataset
from padless.planning import PlanSpec, plan_with
from padless.rows import Batch
from padless.training import RowSampler

Scheduler = Callable[[np.ndarray], Sequence[Sequence[Any]]]
"""From the slots of each sample, int64[N], to `[micro-batch][rank]` -> the samples' numbers among the N."""


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


class ScheduledBatches:
    """The micro-batches of one data-parallel rank, global batch by global batch.

    Every rank asks the same sampler and the same scheduler, so all know the whole schedule without a collective. What a
    scheduler gives is checked: each sample once, the same number of micro-batches on every rank, none of them empty.

    Args:
        sampler: Over a `scheduled` data set, with `ranks=1, rank=0` on every rank: a step is a global batch. It keeps
            the order, and resumes.
        scheduler: From the slots of each sample, int64[N], to `[micro-batch][rank]` -> numbers among the N.
        rank: Which data-parallel rank this is.
        collate: From the samples' rows to what a step takes; the `Batch` itself unless given.

    Example:
        >>> import tempfile
        >>> from padless.frameworks.megatron import with_eod
        >>> samples = with_eod([[5, 6, 7], [8], [9, 9], [1]], 2)
        >>> store = TokenStore.write(tempfile.mkdtemp(), samples, vocab_size=10, eod_id=2)
        >>> sampler = RowSampler(scheduled(store, 8, eod_id=2), rows=4, drop_last=True, ranks=1, rank=0)
        >>> def halves(slots):
        ...     order = np.argsort(-slots)
        ...     return [[order[[0, 3]], order[[1, 2]]]]
        >>> [step] = ScheduledBatches(sampler, halves, rank=0)
        >>> [batch.num_tokens for batch in step]
        [6]
    """

    def __init__(
        self,
        sampler: RowSampler,
        scheduler: Scheduler,
        rank: int,
        *,
        collate: Callable[[Batch], Any] = lambda batch: batch,
    ) -> None:
        if sampler.ranks != 1:
            raise PadlessError(
                f"the sampler deals rows to {sampler.ranks} ranks, and so does the scheduler; give ranks=1, rank=0 and "
                "the samples of a whole global batch as rows"
            )
        plan = sampler.dataset.plan
        if plan.num_segments != plan.num_rows:
            raise PadlessError(
                f"rows hold {plan.num_segments / plan.num_rows:.1f} samples each: they are packed already; a scheduler "
                "takes `scheduled(store, ...)`, one sample in a row"
            )
        self.sampler = sampler
        self.scheduler = scheduler
        self.rank = rank
        self.collate = collate

    def __len__(self) -> int:
        """Global batches in an epoch."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[list[Any]]:
        dataset = self.sampler.dataset
        align = dataset.plan.spec.align
        for rows in self.sampler:
            lengths = np.array([_length(dataset, row) for row in rows], np.int64)
            parts = self.scheduler(-(-lengths // align) * align)
            _check(parts, lengths, self.rank)
            mine = [np.asarray(part[self.rank]).tolist() for part in parts]
            yield [self.collate(dataset.__getitems__([rows[i] for i in ids])) for ids in mine]


def _length(dataset: Any, row: Any) -> int:
    return int(dataset.plan.lengths[row]) if isinstance(row, int) else int(row.lengths[0])


def _check(parts: Sequence[Sequence[Any]], lengths: np.ndarray, rank: int) -> None:
    ranks = {len(part) for part in parts}
    if len(ranks) != 1:
        raise ViolationError(f"the scheduler gave micro-batches for {sorted(ranks)} ranks: expected one number for all")
    if not 0 <= rank < min(ranks):
        raise PadlessError(f"rank={rank} and the scheduler gave work for {min(ranks)} ranks")
    empty = [(m, r) for m, part in enumerate(parts) for r, ids in enumerate(part) if len(ids) == 0]
    if empty:
        raise ViolationError(
            f"the scheduler left rank {empty[0][1]} without a sample in micro-batch {empty[0][0]} ({len(lengths)} "
            f"samples for {min(ranks)} ranks): it would wait in the others' collectives for ever; give larger global "
            "batches"
        )
    placed = np.sort(np.concatenate([np.asarray(ids, np.int64) for part in parts for ids in part]))
    if not np.array_equal(placed, np.arange(len(lengths))):
        raise ViolationError(
            f"the scheduler placed {len(placed)} of {len(lengths)} samples, some of them twice or not at all; each "
            "must be in one micro-batch of one rank"
        )
