"""What a pack made, in numbers: for people as a table, for machines as JSON."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np

from padless.corpus.manifest import Manifest
from padless.corpus.store import TokenStore
from padless.planning import Plan

__all__ = ["Notes", "Summary", "summarise"]


@dataclass(frozen=True, kw_only=True)
class Notes:
    """What a run saw that the store does not hold.

    Attributes:
        straddling: Tokens across the border of target text and other text; they are targets.
        surplus_eod: EOD tokens at samples' ends that were left out, because one is enough.
        resumed: Whether an earlier run had begun; then the two counts are of this run alone.
    """

    straddling: int = 0
    surplus_eod: int = 0
    resumed: bool = False


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The keys of `padless pack --json`, and what the table needs beside them.

    Attributes:
        samples: Samples in the store.
        tokens: Their tokens, EOD included.
        targets: Targets in the store; all are in rows unless a sample was longer than a row.
        eod_tokens: Tokens that end a sample.
        rows: Rows of the plan.
        capacity: Slots in a row.
        efficiency: Real tokens in rows as a fraction of slots.
        padding_before: Padding as a fraction of slots if every segment had a row of its own.
        tail_padding: Slots behind a row's last segment.
        alignment_padding: Slots between a segment's end and the next multiple of `align`.
        truncated_samples: Samples cut to a row, and
        truncated_tokens: their tokens that are in no row.
        split_samples: Samples in several pieces.
        dropped_samples: Samples left out for their length, and
        dropped_tokens: their tokens.
        rejected_records: Records that could not become a sample.
        lower_bound: Rows that no plan can go below.
        gap: The most by which the rows can exceed the optimum, as a fraction of it.
        seconds: Time of the run; 0 when there was nothing left to do.
        tokens_per_second: Tokens by time; 0 when there was nothing left to do.
        plan, manifest, notes: Where the numbers come from; not among the keys.
        trained: Targets in rows, and placed samples that have none there; not among the keys.
    """

    samples: int
    tokens: int
    targets: int
    eod_tokens: int
    rows: int
    capacity: int
    efficiency: float
    padding_before: float
    tail_padding: int
    alignment_padding: int
    truncated_samples: int
    truncated_tokens: int
    split_samples: int
    dropped_samples: int
    dropped_tokens: int
    rejected_records: int
    lower_bound: int
    gap: float
    seconds: float
    tokens_per_second: float
    plan: Plan = field(repr=False)
    manifest: Manifest = field(repr=False)
    notes: Notes = Notes()
    trained: "Trained"

    def to_dict(self) -> dict[str, Any]:
        """The keys of `--json`."""
        beside = {"plan", "manifest", "notes", "trained"}
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in beside}

    @property
    def slots_before(self) -> int:
        """Slots if every segment had a row of its own: training on padded samples."""
        return self.plan.accounting.segments * self.capacity


def summarise(store: TokenStore, *, seconds: float = 0.0, notes: Notes = Notes()) -> Summary:
    """The numbers of a store and the plan it was packed with."""
    packing = store.manifest.packing
    plan = store.plan(None if packing is None else packing.capacity)
    books = plan.accounting
    slots_before = books.segments * plan.capacity
    return Summary(
        **msgspec.structs.asdict(store.manifest.counts),
        rows=plan.num_rows,
        capacity=plan.capacity,
        efficiency=books.efficiency,
        padding_before=1 - books.real_tokens / slots_before,
        tail_padding=books.tail_padding,
        alignment_padding=books.alignment_padding,
        truncated_samples=books.truncated_samples,
        truncated_tokens=books.truncated_tokens,
        split_samples=books.split_samples,
        dropped_samples=books.dropped_samples,
        dropped_tokens=books.dropped_tokens,
        lower_bound=plan.certificate.lower_bound,
        gap=plan.certificate.gap,
        seconds=seconds,
        tokens_per_second=store.manifest.counts.tokens / seconds if seconds else 0.0,
        plan=plan,
        manifest=store.manifest,
        notes=notes,
        trained=trained(store, plan),
    )


class Trained(NamedTuple):
    """What an oversize policy leaves to train on: targets in rows, and placed samples without a single one."""

    targets: int
    without_target: int


def trained(store: TokenStore, plan: Plan) -> Trained:
    """Count the targets in rows; only samples that do not lie whole in one row are looked at."""
    whole = plan.lengths == store.lengths[plan.sample_ids]
    inside = np.zeros(len(store), np.bool_)
    inside[plan.sample_ids[whole]] = True
    missed = sum(int(store[sample_id].target_mask().sum()) for sample_id in np.flatnonzero(~inside).tolist())
    kept: dict[int, int] = {}
    for at in np.flatnonzero(~whole).tolist():
        sample_id = int(plan.sample_ids[at])
        _, targets = store.gather([sample_id], plan.starts[at : at + 1], plan.lengths[at : at + 1])
        kept[sample_id] = kept.get(sample_id, 0) + int(targets.sum())
    return Trained(store.manifest.counts.targets - missed + sum(kept.values()), list(kept.values()).count(0))
