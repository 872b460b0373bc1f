"""Rows under two capacities at once: tokens for the decoder, image patches for the vision tower.

A row of text may hold hundreds of samples and a row of images a few, so that tokens alone would let a row's patches
grow beyond what the tower's memory holds. Samples go, largest first, to the open row that is left with the least room
in both (the L2 rule for vector bin packing, Panigrahy et al. 2011).
"""

import dataclasses
import hashlib
from typing import Any

import numpy as np

from padless.errors import PadlessError
from padless.lengths import Bound, LengthHistogram, as_lengths, lower_bound
from padless.lengths.checks import first_few
from padless.planning.certificate import Certificate
from padless.planning.fingerprint import lengths_digest, plan_fingerprint
from padless.planning.make import account
from padless.planning.result import Plan, length_dtype
from padless.planning.shuffle import shuffled
from padless.planning.spec import PlanSpec

STRATEGY = "two-capacities"
WINDOW = 16_384  # samples planned at a time: enough for good rows, and few enough that the time stays linear
_ROW_ORDER = 7  # streams of the seed
_WINDOW_ORDER = 8


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MediaPlan:
    """A plan that also respects a capacity in patches.

    Attributes:
        plan: Which samples share a row. Its certificate is the better bound of tokens alone and patches alone.
        patches: int64[S], patches of each segment.
        patch_capacity: Most patches of a row.

    Example:
        >>> made = plan_media([10, 10, 4], [80, 80, 0], capacity=32, patch_capacity=100)
        >>> made.plan.num_rows, str(made.plan.certificate), made.row_patches.tolist()
        (2, '2 rows, optimal: the bound patches L1 is met', [80, 80])
    """

    plan: Plan
    patches: np.ndarray
    patch_capacity: int

    @property
    def row_patches(self) -> np.ndarray:
        """int64[R], patches of each row."""
        return np.add.reduceat(self.patches, self.plan.row_offsets[:-1])


def plan_media(
    lengths: Any,
    patches: Any,
    capacity: int,
    patch_capacity: int,
    *,
    seed: int = 0,
    max_segments: int | None = None,
    oversize: str = "error",
    window: int = WINDOW,
) -> MediaPlan:
    """Plan rows of at most `capacity` tokens and `patch_capacity` patches.

    Args:
        lengths: Tokens of each sample [N], those of its media included.
        patches: Patches of each sample [N]; 0 for text alone.
        capacity: Slots per row.
        patch_capacity: Patches per row, over all its images and videos.
        seed: Of the order of the rows.
        max_segments: Most samples in a row.
        oversize: `error` or `drop`; a sample with media is never split or truncated, which would cut an image.
        window: Plan this many shuffled samples at a time.

    Returns:
        A plan that is the same on every machine for the same arguments.

    Raises:
        PadlessError: When a sample is too large under `error`, or the policy would cut samples.
    """
    if oversize not in ("error", "drop"):
        raise PadlessError(
            f"oversize={oversize!r} would cut samples, and a cut may fall inside an image: give 'error' or 'drop', or "
            "lower max_pixels so that images take fewer tokens"
        )
    spec = PlanSpec(
        capacity=capacity, strategy=STRATEGY, seed=seed, max_segments=max_segments, oversize=oversize, window=window
    )
    tokens, weights = as_lengths(lengths), _as_patches(patches, patch_capacity)
    if len(tokens) != len(weights):
        raise PadlessError(
            f"{len(tokens):,} lengths and {len(weights):,} numbers of patches: give one of each a sample"
        )
    kept, taken = _kept(tokens, weights, spec, patch_capacity)
    rows = _pack(tokens[kept], weights[kept], spec, patch_capacity)
    order = np.concatenate(rows)
    ids, sizes = kept[order], tokens[kept][order].astype(np.int64)
    widths = np.array([len(row) for row in rows])
    placed = LengthHistogram.of(sizes)
    plan = Plan(
        row_offsets=np.concatenate([[0], np.cumsum(widths)]),
        sample_ids=ids.astype(np.int64),
        starts=np.zeros(len(ids), np.int64),
        lengths=sizes.astype(length_dtype(capacity)),
        spec=spec,
        certificate=Certificate.of(len(rows), _bound(sizes, weights[ids], spec, patch_capacity)),
        accounting=account(
            samples=len(tokens), rows=len(rows), placed=placed, taken=taken, widest=int(widths.max()), spec=spec
        ),
        fingerprint=_fingerprint(tokens, weights, spec, patch_capacity),
    )
    return MediaPlan(plan=plan, patches=weights[ids], patch_capacity=patch_capacity)


def _as_patches(values: Any, patch_capacity: int) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (len(array) and array.min() < 0):
        raise PadlessError(f"patches must be whole numbers from 0, one a sample [N]; got {array.dtype} {array.shape}")
    if patch_capacity < 1:
        raise PadlessError(f"patch_capacity={patch_capacity} holds no patch; give at least 1")
    return array.astype(np.int64)


def _kept(
    tokens: np.ndarray, patches: np.ndarray, spec: PlanSpec, patch_capacity: int
) -> tuple[np.ndarray, dict[str, int]]:
    """Samples that fit a row, and what became of the others."""
    over = (tokens > spec.capacity) | (patches > patch_capacity)
    kept, taken = (
        np.flatnonzero(~over),
        dict.fromkeys(
            ("truncated_samples", "truncated_tokens", "dropped_samples", "dropped_tokens", "split_samples"), 0
        ),
    )
    if over.any() and spec.oversize == "error":
        which = np.flatnonzero(over)
        raise PadlessError(
            f"{len(which):,} of {len(tokens):,} samples are too large for a row of {spec.capacity:,} tokens "
            f"({first_few(np.flatnonzero(tokens > spec.capacity), tokens) or 'none'}) and {patch_capacity:,} patches "
            f"({first_few(np.flatnonzero(patches > patch_capacity), patches) or 'none'}); raise a capacity, lower "
            "max_pixels, or give oversize='drop'"
        )
    if not len(kept):
        raise PadlessError(f"all {len(tokens):,} samples are too large for a row: dropping leaves nothing")
    return kept, taken | {"dropped_samples": int(over.sum()), "dropped_tokens": int(tokens[over].sum())}


def _pack(tokens: np.ndarray, patches: np.ndarray, spec: PlanSpec, patch_capacity: int) -> list[np.ndarray]:
    """The samples of each row, window by window; rows in seeded order."""
    sizes = np.stack([tokens, patches], axis=1).astype(np.int64)
    room = np.array([spec.capacity, patch_capacity])
    window = spec.window or len(tokens)
    mixed = shuffled(len(tokens), spec.seed, _WINDOW_ORDER) if len(tokens) > window else np.arange(len(tokens))
    parts = [mixed[at : at + window] for at in range(0, len(mixed), window)]
    rows = [part[row] for part in parts for row in _pack_window(sizes[part], room, spec.max_segments)]
    return [rows[r] for r in shuffled(len(rows), spec.seed, _ROW_ORDER).tolist()]


def _pack_window(sizes: np.ndarray, capacities: np.ndarray, most: int | None) -> list[list[int]]:
    """Largest first, each to the row that is left with the least room; a new row when none has enough."""
    share = (sizes * capacities[::-1]).max(axis=1)  # of the scarcer capacity, in whole numbers
    order = np.lexsort((np.arange(len(sizes)), -sizes[:, 0], -share))
    room = np.empty((len(sizes), 2), dtype=np.int64)
    rows: list[list[int]] = []
    for item in order.tolist():
        left = room[: len(rows)] - sizes[item]
        fits = (left >= 0).all(axis=1)
        if fits.any():
            row = int(np.argmin(np.where(fits, np.square(left / capacities).sum(axis=1), np.inf)))
        else:
            row = len(rows)
            rows.append([])
            room[row] = capacities
        room[row] -= sizes[item]
        rows[row].append(item)
        if len(rows[row]) == most:
            room[row] = -1
    return rows


def _bound(tokens: np.ndarray, patches: np.ndarray, spec: PlanSpec, patch_capacity: int) -> Bound:
    """The better of two bounds, each of one capacity alone; what the two together forbid is not known."""
    by_tokens = lower_bound(tokens, spec.capacity, max_segments=spec.max_segments)
    pictured = patches[patches > 0]
    if not len(pictured):
        return by_tokens
    by_patches = lower_bound(pictured, patch_capacity, max_segments=spec.max_segments)
    return max(by_tokens, Bound(rows=by_patches.rows, by=f"patches {by_patches.by}"), key=lambda bound: bound.rows)


def _fingerprint(tokens: np.ndarray, patches: np.ndarray, spec: PlanSpec, patch_capacity: int) -> str:
    text = f"{plan_fingerprint(tokens, spec)} {lengths_digest(patches)} {patch_capacity}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
