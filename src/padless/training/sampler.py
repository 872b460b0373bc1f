"""Which rows at which step for which data-parallel rank."""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from padless.errors import PadlessError
from padless.planning import Plan
from padless.training.balance import TOKENS, Cost, deal, imbalance, row_costs
from padless.training.dataset import PackedDataset, Row
from padless.training.epochs import EpochSpec, EpochSteps, make_epoch_steps
from padless.training.media_dataset import MediaDataset
from padless.training.state import Cursor, Position, check_state, check_steps, save_state


class RowSampler:
    """Batches of row numbers for one data-parallel rank; the `batch_sampler=` of a `DataLoader`.

    Every epoch has its own order, drawn from `(seed, epoch)` and equal on every machine. Every rank gets the same
    number of batches. What a step holds over all ranks does not depend on the number of ranks, so training may go on
    with another number of them.

    A fresh `iter()` starts the epoch again, except the first one after `load_state_dict`. An epoch read to its end
    moves on to the next. The position counts the batches that were asked for: with `num_workers > 0` a `DataLoader`
    asks ahead, so take the state from a `PackedLoader`, which counts the batches that arrived.

    Args:
        dataset: The rows.
        rows: Rows per step over all ranks, a multiple of `ranks`; give this or `tokens`.
        tokens: Most real tokens per step over all ranks; the number of rows varies.
        drop_last: Whether the rows that do not fill a last step are left out of the epoch; `dropped_rows` counts them.
            False makes a shorter last step.
        ranks: Data-parallel ranks (not the world size, where tensor, pipeline or context parallel ranks share data).
        rank: Which of them this is.
        seed: Decides the order.
        shuffle: False keeps the plan's order in every epoch.
        cost: Deal the rows of a step so that every rank has nearly the same cost. None deals them in order.
        window: Also bring rows of similar cost into the same step, moving none by `window` places or more. A step
            then holds rows that resemble each other; see `group_similar` for what stays random.
        similar: With `window`, rows of similar cost that come together; `ranks` unless given.
        replan: A new plan every epoch, so that samples meet other neighbours: the plan's own spec with `seed + epoch`.

    Raises:
        PadlessError: When the parts contradict each other, or when several processes train and nobody said which rank
            this is.

    Example:
        >>> import tempfile
        >>> from padless import TokenStore, plan
        >>> store = TokenStore.write(tempfile.mkdtemp(), [[5, 6, 7]] * 4, vocab_size=10)
        >>> dataset = PackedDataset(store, plan=plan(store.lengths, 4))
        >>> list(RowSampler(dataset, rows=2, drop_last=False, shuffle=False))
        [[0, 1], [2, 3]]
    """

    def __init__(
        self,
        dataset: PackedDataset | MediaDataset,
        *,
        rows: int | None = None,
        tokens: int | None = None,
        drop_last: bool,
        ranks: int | None = None,
        rank: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        cost: Cost | None = None,
        window: int | None = None,
        similar: int | None = None,
        replan: bool = False,
    ) -> None:
        self.dataset = dataset
        self.ranks, self.rank = _check_ranks(ranks, rank)
        self.spec = EpochSpec(
            rows=rows,
            tokens=tokens,
            drop_last=drop_last,
            seed=seed,
            shuffle=shuffle,
            cost=cost,
            window=window,
            similar=similar or (self.ranks if window else None),
            replan=replan,
        )
        if rows is not None and rows % self.ranks:
            raise PadlessError(
                f"rows={rows} per step do not divide over {self.ranks} ranks: some would hold more rows, and need more "
                f"memory, than others; e.g. rows={-(-rows // self.ranks) * self.ranks}"
            )
        self._cursor = Cursor()
        self._cached: tuple[int, Plan, EpochSteps] | None = None
        self.epoch_steps()

    def epoch_steps(self, epoch: int | None = None) -> EpochSteps:
        """The steps of an epoch (of the current one unless told), the same on every rank."""
        return self._epoch(self.epoch if epoch is None else epoch)[1]

    def _epoch(self, epoch: int) -> tuple[Plan, EpochSteps]:
        if self._cached is None or self._cached[0] != epoch:
            plan = self.dataset.replan(epoch) if self.spec.replan else self.dataset.plan
            costs = self.dataset.row_costs(plan, self.spec.cost) if self.spec.cost else None
            row_tokens = row_costs(plan.row_offsets, plan.lengths, TOKENS).astype(np.int64)
            epoch_steps = make_epoch_steps(self.spec, epoch=epoch, ranks=self.ranks, row_tokens=row_tokens, costs=costs)
            self._cached = (epoch, plan, epoch_steps)
        return self._cached[1:]

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to."""
        return self._cursor.position.epoch

    @property
    def dropped_rows(self) -> int:
        """Rows that the current epoch leaves out."""
        return len(self.epoch_steps().dropped)

    def __len__(self) -> int:
        """Batches per epoch and rank."""
        return self.epoch_steps().num_steps

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch, unless we are in it already (a loaded state stays)."""
        self._cursor.go_to_epoch(epoch)

    def go_to(self, position: Position) -> None:
        """Let the next `iter()` begin at this position."""
        self._cursor.go_to(position)

    def __iter__(self) -> Iterator[list[int] | list[Row]]:
        start = self._cursor.begin()
        plan, epoch_steps = self._epoch(start.epoch)
        for step in range(start.step, epoch_steps.num_steps):
            rows = self._share(epoch_steps, step)[self.rank].tolist()
            self._cursor.advance(epoch_steps.num_steps)
            yield [Row(*plan.row(row)) for row in rows] if self.spec.replan else rows

    def _share(self, epoch_steps: EpochSteps, step: int) -> list[np.ndarray]:
        """The rows of one step, rank by rank; ranks take turns so that none always has the dearest row."""
        rows = epoch_steps.step(step)
        if epoch_steps.costs is None:
            return [rows[rank :: self.ranks] for rank in range(self.ranks)]
        shares = deal(epoch_steps.costs[rows], self.ranks)
        return [rows[shares[(rank + step) % self.ranks]] for rank in range(self.ranks)]

    def imbalance(self, *, cost: Cost | None = None, epoch: int | None = None) -> np.ndarray:
        """How much longer the slowest rank works than the mean rank, step by step.

        Args:
            cost: The cost to measure with; the sampler's own, or the number of tokens when it has none.
            epoch: Which epoch; the current one unless given.

        Returns:
            `float64[steps]`, max / mean over ranks; 1.0 is perfect.
        """
        plan, epoch_steps = self._epoch(self.epoch if epoch is None else epoch)
        costs = self.dataset.row_costs(plan, cost or self.spec.cost or TOKENS)
        shares = (self._share(epoch_steps, step) for step in range(epoch_steps.num_steps))
        return np.array([imbalance(np.array([costs[rows].sum() for rows in share])) for share in shares])

    def state_dict(self) -> dict[str, Any]:
        """Where we stand, in plain values; what `load_state_dict` of an equal sampler takes."""
        return self.state_at(self._cursor.position)

    def state_at(self, position: Position) -> dict[str, Any]:
        """The state of any position, for who counts batches himself."""
        return save_state(
            store=self.dataset.fingerprint,
            plan=self.dataset.plan.fingerprint,
            spec=self.spec,
            ranks=self.ranks,
            position=position,
            epoch_steps=self.epoch_steps(position.epoch),
        )

    def load_state_dict(self, state: dict[str, Any]) -> Position:
        """Go on where a state was saved: the next `iter()` gives the batches that were still to come.

        Returns:
            The position that the state holds.

        Raises:
            PadlessError: When the state was saved over another store, plan, seed or way of cutting steps, or when this
                number of ranks has no step that ends there.
        """
        plan = self.dataset.plan.fingerprint
        position = check_state(state, store=self.dataset.fingerprint, plan=plan, spec=self.spec)
        check_steps(state, self.epoch_steps(position.epoch), ranks=self.ranks)
        self._cursor.go_to(position)
        return position


def _check_ranks(ranks: int | None, rank: int | None) -> tuple[int, int]:
    if (ranks is None) != (rank is None):
        raise PadlessError(f"ranks={ranks}, rank={rank}: expected both or neither")
    if ranks is None or rank is None:
        processes = _distributed_processes()
        if processes > 1:
            raise PadlessError(
                f"{processes} processes train together and the sampler was not told its rank, so each would read the "
                "same rows; pass ranks= and rank= of the data-parallel group"
            )
        return 1, 0
    if not 0 <= rank < ranks:
        raise PadlessError(f"rank={rank} of ranks={ranks}: expected 0 <= rank < ranks")
    return ranks, rank


def _distributed_processes() -> int:
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 1
    return torch.distributed.get_world_size()
