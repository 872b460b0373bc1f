"""Ragged batches from a seed, cheap enough for ten thousand of them: every rule, padding of every kind."""

from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np
import pytest

from padless.masks._reference import reference_mask
from padless.rows import Batch, Rule, batch_from_segments
from padless.rows.rule import Kind

KINDS = ("causal", "bidirectional", "prefix-lm", "block-causal", "mixed", "visibility")
"""`mixed` is block-causal whose segments are causal, bidirectional, prefix-LM or blocks, each by its own ranks."""


def random_lengths(rng: np.random.Generator) -> np.ndarray:
    """One to six segments of one to twelve tokens; one-token segments are common."""
    return np.where(rng.random(n := rng.integers(1, 7)) < 0.25, 1, rng.integers(1, 13, n)).astype(np.int64)


def random_rule(rng: np.random.Generator, kind: str, *, window: bool, chunk: bool) -> Rule:
    limits = [(int(rng.integers(0, 6)), None), (None, int(rng.integers(0, 6))), tuple(rng.integers(0, 6, 2).tolist())]
    table = (rng.random((4, 4)) < 0.5) | np.eye(4, dtype=bool)
    return Rule(
        kind=cast("Kind", "block-causal" if kind in ("mixed", "visibility") else kind),
        window=limits[rng.integers(3)] if window else None,
        chunk=int(rng.integers(1, 7)) if chunk else None,
        visibility=tuple(map(tuple, table.tolist())) if kind == "visibility" else None,
    )


def random_ranks(rng: np.random.Generator, kind: str, length: int) -> np.ndarray:
    if kind == "visibility":
        return rng.integers(0, 4, length)
    shape = rng.integers(4) if kind == "mixed" else 3
    index = np.arange(length)
    if shape == 0:
        return index
    if shape == 1:
        return np.zeros(length, dtype=np.int64)
    if shape == 2:
        return np.maximum(index - rng.integers(0, length + 1) + 1, 0)
    return np.cumsum(rng.random(length) < 0.3)


def random_batch(rng: np.random.Generator, kind: str, *, window: bool = False, chunk: bool = False) -> Batch:
    lengths = random_lengths(rng)
    rule = random_rule(rng, kind, window=window, chunk=chunk)
    align = int(rng.integers(1, 5))
    two_rows = rng.random() < 0.4 and len(lengths) > 1
    row_offsets = [0, *([int(rng.integers(1, len(lengths)))] if two_rows else []), len(lengths)]
    capacity = None
    if rng.random() < 0.5:
        aligned = -(-lengths // align) * align
        widest = max(int(aligned[a:b].sum()) for a, b in pairwise(row_offsets))
        capacity = widest + align * int(rng.integers(0, 4))
    ranked = kind in ("block-causal", "mixed", "visibility")
    return batch_from_segments(
        np.arange(int(lengths.sum())),
        None,
        lengths,
        np.array(row_offsets),
        capacity=capacity,
        align=align,
        pad_to_multiple=int(rng.integers(1, 4)) * align,
        rule=rule,
        prefix_lengths=rng.integers(0, lengths + 2) if kind == "prefix-lm" else None,
        blocks=np.concatenate([random_ranks(rng, kind, int(n)) for n in lengths]) if ranked else None,
    )


class Checked(NamedTuple):
    """A batch, and who sees whom in it by the naive double loop."""

    batch: Batch
    mask: np.ndarray


def random_batches(count: int, seed: int, kinds: tuple[str, ...], *, chunk: bool) -> list[Checked]:
    """`count` batches over `kinds` in turn, with a window in about a third, and with chunks where allowed."""
    rng = np.random.default_rng(seed)
    batches = []
    for i in range(count):
        kind = kinds[i % len(kinds)]
        window = kind != "visibility" and rng.random() < 0.35
        batch = random_batch(rng, kind, window=bool(window), chunk=chunk and rng.random() < 0.35)
        batches.append(Checked(batch, reference_mask(batch)))
    return batches


@pytest.fixture(scope="session")
def all_rules() -> list[Checked]:
    """10,200 batches under every kind of rule."""
    return random_batches(10_200, 11, KINDS, chunk=True)


@pytest.fixture(scope="session")
def plain_rules() -> list[Checked]:
    """10,000 batches under the rules that every kernel knows: causal and bidirectional, some with a window."""
    return random_batches(10_000, 12, ("causal", "bidirectional"), chunk=False)
