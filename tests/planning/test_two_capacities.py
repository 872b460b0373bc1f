"""Plans under tokens and patches at once: valid, complete, the same every time, bounded by what is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.errors import PadlessError
from padless.planning.two_capacities import plan_media

sizes = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 40)), min_size=1, max_size=60)


@given(sizes, st.integers(50, 120), st.integers(40, 90), st.integers(0, 3), st.sampled_from([None, 1, 3]))
@settings(max_examples=60, deadline=None)
def test_every_sample_once_and_no_row_above_either_capacity(drawn, capacity, patch_capacity, seed, most) -> None:
    tokens, patches = np.array(drawn).T
    options = {"seed": seed, "max_segments": most, "window": 16}
    made = plan_media(tokens, patches, capacity, patch_capacity, **options)
    plan = made.plan
    assert sorted(plan.sample_ids.tolist()) == list(range(len(tokens)))
    assert (plan.lengths == tokens[plan.sample_ids]).all()
    assert (made.patches == patches[plan.sample_ids]).all()
    for row in range(plan.num_rows):
        ids, starts, lengths = plan.row(row)
        assert lengths.sum() <= capacity
        assert patches[ids].sum() == made.row_patches[row] <= patch_capacity
        assert not starts.any()
        assert most is None or len(ids) <= most
    assert plan.num_rows >= plan.certificate.lower_bound
    assert plan.accounting.real_tokens == tokens.sum()
    again = plan_media(tokens, patches, capacity, patch_capacity, **options)
    assert again.plan == plan
    assert again.plan.fingerprint == plan.fingerprint


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_no_plan_of_few_samples_is_below_the_bound_and_ours_is_at_most_one_row_above_the_best(drawn) -> None:
    tokens, patches = np.array(drawn).T
    best = _fewest_rows(drawn, 10, 10)
    made = plan_media(tokens, patches, 10, 10).plan
    assert made.certificate.lower_bound <= best <= made.num_rows <= best + 1


def _fewest_rows(items: list[tuple[int, int]], tokens: int, patches: int) -> int:
    """By trying every assignment."""
    best = [len(items)]

    def place(i: int, rows: list[tuple[int, int]]) -> None:
        if len(rows) >= best[0] and i < len(items):
            return
        if i == len(items):
            best[0] = min(best[0], len(rows))
            return
        t, p = items[i]
        for r, (a, b) in enumerate(rows):
            if a + t <= tokens and b + p <= patches:
                place(i + 1, [*rows[:r], (a + t, b + p), *rows[r + 1 :]])
        place(i + 1, [*rows, (t, p)])

    place(0, [])
    return best[0]


def test_other_patches_are_another_plan() -> None:
    one, other = (plan_media([5, 5], [patches, 4], 20, 20).plan for patches in (3, 4))
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint != plan_media([5, 5], [3, 4], 20, 21).plan.fingerprint


def test_too_large_is_an_error_or_dropped_and_counted_never_cut() -> None:
    with pytest.raises(PadlessError, match=r"2 of 3 samples are too large.*#1: 30.*#2: 99"):
        plan_media([5, 30, 5], [1, 1, 99], 20, 20)
    plan = plan_media([5, 30, 5], [1, 1, 99], 20, 20, oversize="drop").plan
    assert plan.sample_ids.tolist() == [0]
    assert (plan.accounting.dropped_samples, plan.accounting.dropped_tokens) == (2, 35)
    for policy in ("split", "truncate"):
        with pytest.raises(PadlessError, match="inside an image"):
            plan_media([5], [1], 20, 20, oversize=policy)
    with pytest.raises(PadlessError, match="leaves nothing"):
        plan_media([30], [1], 20, 20, oversize="drop")


@pytest.mark.parametrize("patches", [[-1], [1.5], [[1]], [1, 2]])
def test_patches_must_be_counts(patches) -> None:
    with pytest.raises(PadlessError, match="patches"):
        plan_media([5], patches, 20, 20)
