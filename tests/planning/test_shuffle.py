"""The shuffle: a permutation, near enough to uniform, and the same bits everywhere."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from padless.planning import plan
from padless.planning.shuffle import shuffled

PINNED_ORDER = [7, 3, 5, 4, 0, 6, 2, 1, 8, 9]
PINNED_PLAN = "f84b7bf9ede7e69f693fd1a5ec0365f45361c146f32b83863e2cb5c938564aec"


@pytest.mark.parametrize("n", [1, 2, 3, 1023, 1024, 1025, 100_000])
def test_every_number_comes_once(n: int) -> None:
    assert np.array_equal(np.sort(shuffled(n, seed=3, stream=1)), np.arange(n))


def test_seeds_and_streams_give_other_orders() -> None:
    orders = {shuffled(50, seed, stream).tobytes() for seed in (0, 1, 1 << 64, 1 << 200) for stream in (0, 1)}
    assert len(orders) == 8


@pytest.mark.parametrize("n", [5, 40])
def test_each_number_is_as_often_at_each_place(n: int) -> None:
    """Chi-squared over numbers and places; a fair shuffle is above 5 standard deviations once in millions of tries."""
    seeds = 4000
    table = np.zeros((n, n))
    for seed in range(seeds):
        table[np.arange(n), shuffled(n, seed, 0)] += 1
    freedom = (n - 1) ** 2
    chi = float(((table - seeds / n) ** 2 / (seeds / n)).sum())
    assert abs(chi - freedom) < 5 * (2 * freedom) ** 0.5


def test_neighbours_are_parted() -> None:
    """Distances between numbers that were neighbours are those of a random order: a third of n on average."""
    n = 1 << 15
    place = np.empty(n, np.int64)
    for seed in range(5):
        place[shuffled(n, seed, 0)] = np.arange(n)
        assert np.abs(np.diff(place)).mean() == pytest.approx(n / 3, rel=0.03)


def test_the_bits_are_pinned(tmp_path: Path) -> None:
    """Promise 3: the same bytes on every machine. If this changes on purpose, raise `fingerprint.ALGORITHMS`."""
    assert shuffled(10, seed=0, stream=0).tolist() == PINNED_ORDER
    lengths = np.arange(1, 2001) % 97 + 1
    plan(lengths, 256, seed=7, align=8, max_segments=9).save(tmp_path / "p.npz")
    assert hashlib.sha256((tmp_path / "p.npz").read_bytes()).hexdigest() == PINNED_PLAN
