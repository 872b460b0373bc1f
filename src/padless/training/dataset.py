"""The rows of a store as a map-style data set: read from the memory map when asked for, copied once."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from padless.corpus import TokenStore
from padless.errors import PadlessError
from padless.planning import Plan, plan_with
from padless.planning.fingerprint import plan_fingerprint
from padless.rows import Batch, Rule, batch_from_segments
from padless.training.balance import Cost, row_costs
from padless.training.tokenizer_check import check_tokenizer


class Row(NamedTuple):
    """The segments of one row: `sample_ids, starts, lengths`, each `int[S]`. What a plan gives and a store gathers."""

    sample_ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


class PackedDataset:
    """Packed rows of a token store, map-style, for any `DataLoader`.

    `dataset[i]` is a `Batch` of row i; asked for many rows at once (`__getitems__`, which a `DataLoader` uses), it
    makes one `Batch` of all of them, so a loader's `collate_fn` takes a `Batch`: `Batch.torch`, or a dialect of
    `padless.frameworks`. Tokens stay in the memory map until a row is read. Workers, forked or spawned, reopen the
    store by its path.

    Args:
        store: A `TokenStore`, or the folder of one.
        plan: Which segments share a row; the store's saved plan unless given. An int takes the saved plan of that
            capacity.
        tokenizer: The tokenizer that trains; refused unless it is the one that made the tokens.
        align: Each segment takes a multiple of this many slots; the plan's own unless given.
        pad_rows: Pad every row to the plan's capacity, for rectangles and static shapes.
        pad_to_multiple, static, rule, position_start, positions, loss_weights, pad_id, dtype: As in `collate`.

    Raises:
        PadlessError: When the plan was made for other lengths, the tokenizer is another one, or the rule needs what a
            store does not hold.

    Example:
        >>> import tempfile
        >>> from padless import plan
        >>> store = TokenStore.write(tempfile.mkdtemp(), [[5, 6, 7], [8, 9], [1, 2, 3]], vocab_size=10)
        >>> dataset = PackedDataset(store, plan=plan(store.lengths, 5))
        >>> len(dataset), sum(row.num_tokens for row in dataset)
        (2, 8)
        >>> dataset.__getitems__([0, 1])
        Batch(2 rows, 3 segments, 8 tokens in 8 slots, 5 targets, causal)
    """

    def __init__(
        self,
        store: TokenStore | str | Path,
        plan: Plan | int | None = None,
        *,
        tokenizer: Any = None,
        align: int | None = None,
        pad_rows: bool = False,
        pad_to_multiple: int = 1,
        static: tuple[int, int] | None = None,
        rule: Rule | None = None,
        position_start: int = 0,
        positions: Literal["restart", "continue"] = "restart",
        loss_weights: Literal["per-sample"] | None = None,
        pad_id: int = 0,
        dtype: Any = np.int64,
    ) -> None:
        self.store = store if isinstance(store, TokenStore) else TokenStore(store)
        self.plan = plan if isinstance(plan, Plan) else self.store.plan(plan)
        if isinstance(plan, Plan):
            _check_plan(plan, self.store)
        if tokenizer is not None:
            check_tokenizer(tokenizer, self.store)
        if rule is not None and rule.has_ranks:
            raise PadlessError(
                f"{rule} needs the rank of every token and a store holds none; collate samples that carry "
                "prefix_length or blocks instead"
            )
        self._options = {
            "capacity": self.plan.capacity if pad_rows else None,
            "align": self.plan.spec.align if align is None else align,
            "pad_to_multiple": pad_to_multiple,
            "static": static,
            "rule": rule,
            "position_start": position_start,
            "positions": positions,
            "loss_weights": loss_weights,
            "pad_id": pad_id,
            "dtype": dtype,
        }

    @property
    def fingerprint(self) -> str:
        """Names the tokens and targets that the rows are made of."""
        return self.store.fingerprint

    def __len__(self) -> int:
        return self.plan.num_rows

    def __getitem__(self, row: int | Row) -> Batch:
        return self.__getitems__([row])

    def __getitems__(self, rows: Sequence[int | Row]) -> Batch:
        """One batch of many rows.

        Args:
            rows: Numbers of rows, or the rows of another plan over this store, as `RowSampler(replan=True)` gives.
        """
        if len(rows) == 0:
            raise PadlessError("a batch of no rows was asked for; give at least one row number")
        given = [row for row in rows if isinstance(row, Row)]
        if len(given) == len(rows):
            sample_ids, starts, lengths = (np.concatenate(part) for part in zip(*given, strict=True))
            return self._read(sample_ids, starts, lengths, np.array([len(row.lengths) for row in given]))
        return self._read(*self._planned(np.asarray(rows, dtype=np.int64)))

    def _planned(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The segments of many rows, and how many each row has."""
        outside = (rows < -len(self)) | (rows >= len(self))
        if outside.any():
            raise IndexError(f"row {rows[outside][0]} of {len(self)} rows")
        first = self.plan.row_offsets[rows % len(self)]
        counts = self.plan.row_offsets[rows % len(self) + 1] - first
        index = np.arange(int(counts.sum())) + np.repeat(first - (np.cumsum(counts) - counts), counts)
        return self.plan.sample_ids[index], self.plan.starts[index], self.plan.lengths[index], counts

    def _read(self, sample_ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray, counts: np.ndarray) -> Batch:
        tokens, targets = self._gather(sample_ids, starts, lengths)
        all_but_first = np.count_nonzero(targets) == len(targets) - np.count_nonzero(starts == 0)
        return batch_from_segments(
            tokens,
            None if all_but_first else targets,  # labels are then a copy of the ids, without a choice per token
            lengths,
            np.concatenate([[0], np.cumsum(counts)]),
            sample_ids=sample_ids,
            starts=starts,
            copy=not tokens.flags.writeable,
            **self._options,
        )

    def _gather(self, sample_ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens `[T]` and targets `bool[T]` of segments, end to end."""
        tokens, targets = self.store.gather(sample_ids, starts, lengths, dtype=self._options["dtype"])
        _restore_first_targets(self.store, targets, sample_ids, starts, lengths)
        return tokens, targets

    def replan(self, epoch: int) -> Plan:
        """The plan of an epoch: this one with its seed moved, so that samples meet other neighbours."""
        if epoch == 0:
            return self.plan
        spec = dataclasses.replace(self.plan.spec, seed=self.plan.spec.seed + epoch)
        return plan_with(self.store.lengths, spec)

    def row_costs(self, plan: Plan, cost: Cost) -> np.ndarray:
        """float64[R], the cost of each row of a plan over this store."""
        return row_costs(plan.row_offsets, plan.lengths, cost)

    def __repr__(self) -> str:
        return f"PackedDataset({str(self.store.path)!r}: {len(self):,} rows of {self.plan.capacity:,})"


def _restore_first_targets(
    store: TokenStore, targets: np.ndarray, sample_ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray
) -> None:
    """Mark the first token of a later piece as the target that it is in its sample, so that its loss gets counted.

    `gather` masks it, and so does the batch; only the batch counts what that loses. Its neighbour on the left is read
    with it because the first token of what is gathered is never a target.
    """
    later = np.flatnonzero(starts > 0)
    if len(later):
        _, pairs = store.gather(sample_ids[later], starts[later] - 1, np.full(len(later), 2))
        targets[(np.cumsum(lengths) - lengths)[later]] = pairs[1::2]


def _check_plan(plan: Plan, store: TokenStore) -> None:
    expected = plan_fingerprint(store.lengths, plan.spec)
    if plan.fingerprint != expected:
        raise PadlessError(
            f"the plan was made for other lengths than those of {store.path}: its fingerprint is {plan.fingerprint}, "
            f"a plan of this store with the same spec has {expected}; plan again with plan(store.lengths, "
            f"{plan.capacity})"
        )
