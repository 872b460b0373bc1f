"""What a report says of a store and one of its plans, as numbers."""

from dataclasses import dataclass

import numpy as np

from padless.corpus import TokenStore
from padless.corpus.manifest import Manifest
from padless.corpus.summary import Trained, trained
from padless.planning import Plan

__all__ = ["Facts", "Loss", "gather"]


@dataclass(frozen=True)
class Loss:
    """Something that did not come through whole: what, why, and how much."""

    what: str
    count: int
    said: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A store and a plan in numbers.

    Attributes:
        name: The store's folder, without what is above it: a report does not depend on where the store lies.
        manifest: What the store says of itself.
        plan: Which segments share a row.
        trained: Targets that are in rows, and placed samples without one.
        lengths: int64[N], tokens of every sample.
        row_tokens: int64[R], real tokens of every row.
        row_segments: int64[R].
    """

    name: str
    manifest: Manifest
    plan: Plan
    trained: Trained
    lengths: np.ndarray
    row_tokens: np.ndarray
    row_segments: np.ndarray

    @property
    def slots_before(self) -> int:
        """Slots if every segment had a padded row of its own, as `padless pack` counts them."""
        return self.plan.accounting.segments * self.plan.capacity

    @property
    def waste_before(self) -> float:
        """Padding as a fraction of those slots."""
        return 1 - self.plan.accounting.real_tokens / self.slots_before

    @property
    def fewer_slots(self) -> float:
        """How many times as many slots the padded rows would have."""
        return self.slots_before / self.plan.accounting.slots

    def losses(self) -> list[Loss]:
        """All that is not in a row whole, zeros included: that nothing was lost is worth saying too."""
        books, counts = self.plan.accounting, self.manifest.counts
        policy = self.plan.spec.oversize
        cut = f"{books.truncated_tokens:,} tokens at their end are in no row; the store keeps them"
        return [
            Loss("records rejected", counts.rejected_records, "each with its reason in rejected.jsonl"),
            Loss("samples truncated", books.truncated_samples, cut if books.truncated_samples else ""),
            Loss("samples dropped", books.dropped_samples, f"{books.dropped_tokens:,} tokens, by the policy {policy}"),
            Loss("samples split", books.split_samples, "whole, in several pieces; positions restart in each"),
            Loss("targets in no row", counts.targets - self.trained.targets, "cut off, or first token of a piece"),
            Loss("samples without a target", self.trained.without_target, "they were cut and train nothing"),
        ]


def gather(store: TokenStore, plan: Plan) -> Facts:
    """Count what a report shows; reads tokens only of samples that do not lie whole in one row."""
    widths = np.diff(plan.row_offsets)
    rows = np.repeat(np.arange(plan.num_rows), widths)
    return Facts(
        name=store.path.resolve().name,
        manifest=store.manifest,
        plan=plan,
        trained=trained(store, plan),
        lengths=store.lengths,
        row_tokens=np.bincount(rows, weights=plan.lengths, minlength=plan.num_rows).astype(np.int64),
        row_segments=widths,
    )
