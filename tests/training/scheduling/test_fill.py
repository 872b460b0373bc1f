"""Least work first: where a sample goes, and what swaps bring."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.training.scheduling.fill import into_bins, least_work_first, refine

works_lists = st.lists(st.integers(1, 1000), min_size=1, max_size=40)


def loads_of(owner: np.ndarray, works: np.ndarray, bins: int) -> np.ndarray:
    return np.bincount(owner, weights=works, minlength=bins)


@settings(max_examples=60, deadline=None)
@given(works_lists, st.integers(1, 6))
def test_least_work_first_equals_a_loop(values: list[int], bins: int) -> None:
    loads, want = [0] * bins, [0] * len(values)
    for i in sorted(range(len(values)), key=lambda i: (-values[i], i)):
        want[i] = min(range(bins), key=lambda b: (loads[b], b))
        loads[want[i]] += values[i]
    assert least_work_first(np.array(values), bins).tolist() == want


@settings(max_examples=100, deadline=None)
@given(works_lists, st.integers(1, 6), st.randoms())
def test_swaps_never_make_the_dearest_bin_dearer_nor_overfill_one(values: list[int], bins: int, random) -> None:
    works, slots = np.array(values), np.array([random.randint(1, 9) for _ in values])
    owner = np.array([random.randrange(bins) for _ in values])
    room = int(loads_of(owner, slots, bins).max())
    found = refine(owner, works, bins, slots, room)
    assert loads_of(found, works, bins).max() <= loads_of(owner, works, bins).max()
    assert loads_of(found, slots, bins).max() <= room
    assert (np.bincount(found, minlength=bins) > 0).sum() >= (np.bincount(owner, minlength=bins) > 0).sum()


def test_a_swap_that_helps_is_found() -> None:
    """Two bins of 8 against one of 12 and one of 4: the 6 and the 2 change places."""
    owner = refine(np.array([0, 0, 1, 1]), np.array([6, 6, 2, 2]), 2)
    assert sorted(loads_of(owner, np.array([6, 6, 2, 2]), 2).tolist()) == [8, 8]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 100), st.integers(1, 9)), min_size=1, max_size=30),
    st.integers(1, 6),
    st.integers(9, 30),
    st.none() | st.integers(1, 6),
)
def test_into_bins_equals_a_loop(items: list[tuple[int, int]], bins: int, room: int, most: int | None) -> None:
    """To the open bin with least work if it fits there, else to the one with most room, else nowhere."""
    works, slots = (np.array(column) for column in zip(*items, strict=True))
    want: list[list[int]] | None = [[] for _ in range(bins)]
    limit = len(items) if most is None else most
    for i in np.argsort(-works, kind="stable").tolist():
        able = [b for b in range(bins) if len(want[b]) < limit]
        used = {b: sum(slots[j] for j in want[b]) for b in able}
        choice = min(able, key=lambda b: (sum(works[j] for j in want[b]), len(want[b]), b), default=None)
        if choice is not None and used[choice] + slots[i] > room:
            choice = min(able, key=lambda b: (used[b], len(want[b]), b))
        if choice is None or used[choice] + slots[i] > room:
            want = None
            break
        want[choice].append(i)
    found = into_bins(works, slots, bins, room=room, most=most)
    assert (found is None) == (want is None)
    if found is not None and want is not None:
        assert sorted(found) == sorted(want)
        loads = [int(works[members].sum()) for members in found]
        assert loads == sorted(loads, reverse=True)
