"""Rows of samples with images, decoded only when their row is loaded; planned and balanced by what both towers pay."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from padless.errors import PadlessError
from padless.planning import Plan
from padless.planning.two_capacities import MediaPlan, plan_media
from padless.rows import Batch, MediaLayout, collate_media
from padless.rows.media import KINDS, Kind, as_grids
from padless.rows.media_collate import GRIDS, PIXELS
from padless.training.balance import Cost, row_costs
from padless.training.dataset import Row

Load = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TowersCost(Cost):
    """The cost of a row in a decoder and a vision tower together, in any unit.

    Attributes:
        linear: Of one token of the decoder outside attention.
        quadratic: Of one (query, key) pair of a segment.
        patch: Of one patch of the tower outside attention over whole frames (windows included: they have one size).
        patch_pair: Of one pair of patches of a frame.
    """

    patch: float = 0.0
    patch_pair: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.patch, self.patch_pair) < 0:
            raise PadlessError(f"patch={self.patch} and patch_pair={self.patch_pair} must be at least 0")


class MediaDataset:
    """Rows of samples with media, map-style, for `RowSampler`, `PackedLoader` and any `DataLoader`.

    `dataset[i]` is a `Batch` of row i, and `__getitems__` makes one `Batch` of many rows, as `PackedDataset` does.

    Args:
        samples: What is known of each sample without decoding: `input_ids` with placeholders, `labels` or a mask, and
            `image_grid_thw` / `video_grid_thw`; and whatever `load` needs to find the media. Any sequence, also one
            that reads from disk.
        load: `load(sample) -> mapping` with `pixel_values` (and `pixel_values_videos`) of its media, in order; called
            only for the samples of rows that are asked for.
        layout: The model's.
        capacity: Tokens per row.
        patch_capacity: Patches per row.
        seed, max_segments, oversize, window: As for `plan_media`.
        pad_to_multiple: Round each batch up to a multiple of this many slots.

    Raises:
        PadlessError: When a sample's placeholders and grids disagree, at once and not at its step.

    Example:
        >>> layout = MediaLayout(image_token=9)
        >>> seen = {"input_ids": [1, 9, 9, 2], "image_grid_thw": [[1, 2, 4]]}
        >>> read = lambda sample: {"pixel_values": np.zeros((8, 3), dtype=np.float32)}
        >>> rows = MediaDataset([seen, [3, 4], seen], read, layout=layout, capacity=8, patch_capacity=8)
        >>> len(rows), [row.num_tokens for row in rows]
        (2, [4, 6])
    """

    def __init__(
        self,
        samples: Sequence[Any],
        load: Load,
        *,
        layout: MediaLayout,
        capacity: int,
        patch_capacity: int,
        pad_to_multiple: int = 1,
        **planning: Any,
    ) -> None:
        self.samples, self.load, self.layout = samples, load, layout
        self._sizes = (capacity, patch_capacity)
        self._planning = planning
        self._pad_to_multiple = pad_to_multiple
        counts = np.array([_counts(sample, layout, i) for i, sample in enumerate(samples)], dtype=np.int64)
        if not len(counts):
            raise PadlessError("there are no samples to plan; give at least one")
        self.lengths, self.patches, self.patch_pairs = counts.T
        self.media_plan = self._plan(0)

    def _plan(self, epoch: int) -> MediaPlan:
        options = {**self._planning, "seed": self._planning.get("seed", 0) + epoch}
        return plan_media(self.lengths, self.patches, *self._sizes, **options)

    @property
    def plan(self) -> Plan:
        """Which samples share a row."""
        return self.media_plan.plan

    @property
    def fingerprint(self) -> str:
        """Names the lengths and patches that the rows are made of."""
        return self.plan.fingerprint

    def replan(self, epoch: int) -> Plan:
        """The plan of an epoch: the same samples with the seed moved, so that they meet other neighbours."""
        return self.plan if epoch == 0 else self._plan(epoch).plan

    def row_costs(self, plan: Plan, cost: Cost) -> np.ndarray:
        """float64[R], the cost of each row; with a `TowersCost`, of both towers."""
        found = row_costs(plan.row_offsets, plan.lengths, cost)
        if isinstance(cost, TowersCost):
            own = cost.patch * self.patches[plan.sample_ids] + cost.patch_pair * self.patch_pairs[plan.sample_ids]
            found += np.add.reduceat(own, plan.row_offsets[:-1])
        return found

    def __len__(self) -> int:
        return self.plan.num_rows

    def __getitem__(self, row: int | Row) -> Batch:
        if not isinstance(row, Row) and not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)} rows")
        return self.__getitems__([row])

    def __getitems__(self, rows: Sequence[int | Row]) -> Batch:
        """One batch of many rows; media of their samples are loaded now."""
        ids = [row.sample_ids if isinstance(row, Row) else self.plan.row(row % len(self))[0] for row in rows]
        samples = [[self._loaded(i) for i in row.tolist()] for row in ids]
        return collate_media(samples, self.layout, pad_to_multiple=self._pad_to_multiple)

    def _loaded(self, i: int) -> dict[str, Any]:
        sample = self.samples[i]
        if not isinstance(sample, Mapping):
            sample = {"input_ids": sample}
        seen: list[Kind] = [kind for kind in KINDS if as_grids(sample.get(GRIDS[kind]))]
        whole = {**sample, **(self.load(sample) if seen else {}), "sample_id": i}
        for kind in seen:
            if whole.get(PIXELS[kind]) is None:
                raise PadlessError(
                    f"load(sample {i}) gave no {PIXELS[kind]}, and the sample has {kind}s: a model would read their "
                    "placeholders as text"
                )
        return whole


def _counts(sample: Any, layout: MediaLayout, i: int) -> tuple[int, int, int]:
    """Tokens, patches, and pairs of patches in one frame, of a sample; placeholders and grids are checked."""
    if not isinstance(sample, Mapping):
        sample = {"input_ids": sample}
    ids = np.asarray(sample["input_ids"])
    if ids.ndim != 1:
        raise PadlessError(f"sample {i}: input_ids have shape {ids.shape}; expected [n], one sample without a row axis")
    patches = pairs = 0
    for kind in KINDS:
        grids = as_grids(sample.get(GRIDS[kind]))
        wanted, found = sum(map(layout.tokens, grids)), int((ids == layout.token(kind)).sum())
        if wanted != found:
            raise PadlessError(
                f"sample {i} holds {found} {kind} placeholders and its grids make {wanted}: expand its placeholders "
                "with expand_placeholders, and never cut a sample"
            )
        patches += sum(t * h * w for t, h, w in grids)
        pairs += sum(t * (h * w) ** 2 for t, h, w in grids)
    return len(ids), patches, pairs
