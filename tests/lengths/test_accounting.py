"""The books, digit for digit against sums done by hand, and the bounds against brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.errors import PadlessError
from padless.lengths import Accounting, LengthHistogram, attention_saved, lower_bound, steps, time_saved
from padless.planning import plan

A, B = [2048, 512, 256, 128], [1024, 768, 512, 256, 96]


def test_worked_example_a() -> None:
    before, after = Accounting.padded(A, 2048), plan(A, 2048).accounting
    assert (before.real_tokens, before.slots, before.padding, before.ceil_bound) == (2944, 8192, 5248, 2)
    assert before.waste_rate == 0.640625
    assert (after.rows, after.slots, after.padding) == (2, 4096, 1152)
    assert f"{after.waste_rate:.1%}" == "28.1%"
    assert before.slots - after.slots == 4096
    assert (before.slots - after.slots) / before.slots == 0.5
    assert before.packing_factor == 1.0
    assert after.packing_factor == 2.0
    assert (before.padded_score_elements, after.score_elements) == (8_388_608, 2_269_184)
    assert f"{after.score_elements / before.padded_score_elements:.1%}" == "27.1%"
    assert after.strict_score_elements == sum(n * (n - 1) // 2 for n in A) == 2_267_712


def test_worked_example_b() -> None:
    before, after = Accounting.padded(B, 2048), plan(B, 2048).accounting
    assert (before.real_tokens, before.slots, before.padding, before.ceil_bound) == (2656, 10240, 7584, 2)
    assert before.waste_rate == 0.740625
    assert (after.rows, after.slots, after.padding) == (2, 4096, 1440)
    assert before.slots - after.slots == 6144
    assert (before.slots - after.slots) / before.slots == 0.6


def test_two_samples_in_a_long_context() -> None:
    books = Accounting.padded([2048, 128], 131_072)
    assert (books.slots, books.real_tokens, books.padding) == (262_144, 2176, 259_968)
    assert f"{books.waste_rate:.1%}" == "99.2%"


def test_sums_that_reports_get_wrong() -> None:
    assert time_saved(1.88) == pytest.approx(0.4687, abs=1e-3)  # the report's 46.87 %; 1 / 1.88 gives 46.81 %
    assert time_saved(2.0) == 0.5
    assert attention_saved(0.25) == 0.4375
    with pytest.raises(PadlessError):
        time_saved(0)
    with pytest.raises(PadlessError):
        attention_saved(1.5)


def test_steps_before_and_after() -> None:
    found = steps(Accounting.padded(A * 6, 2048), plan(A * 6, 2048).accounting, rows_per_step=4)
    assert plan(A * 6, 2048).num_rows == 9  # 6 full ones; 896 goes twice into a third
    assert (found.steps_before, found.steps_after) == (6, 3)
    assert found.tokens_before == 24 * 736 / 6
    assert found.tokens_after == pytest.approx(24 * 736 / 9 * 4)
    assert found.rows_for_same_tokens == pytest.approx(1.5)


def test_books_that_do_not_add_up_are_refused() -> None:
    facts = {"samples": 1, "segments": 1, "rows": 1, "capacity": 8, "sum_squares": 25, "segments_per_row_max": 1}
    with pytest.raises(PadlessError, match="does not add up"):
        Accounting(real_tokens=5, tail_padding=2, **facts)
    with pytest.raises(PadlessError, match="below zero"):
        Accounting(real_tokens=9, tail_padding=-1, **facts)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 60).flatmap(lambda c: st.tuples(st.lists(st.integers(1, c), min_size=1, max_size=30), st.just(c)))
)
def test_l2_is_the_best_of_all_thresholds(instance: tuple) -> None:
    """Martello and Toth's definition, threshold by threshold."""
    lengths, capacity = instance
    bounds = [-(-sum(lengths) // capacity)]
    for k in range(capacity // 2 + 1):
        alone = sum(n > capacity - k for n in lengths)
        large = [n for n in lengths if capacity // 2 < n <= capacity - k]
        small = sum(n for n in lengths if k <= n <= capacity // 2)
        bounds.append(alone + len(large) + max(0, -(-(small - (len(large) * capacity - sum(large))) // capacity)))
    assert lower_bound(lengths, capacity).rows == max(bounds)


def test_bounds_name_their_proof() -> None:
    assert lower_bound([6, 6, 6, 2], 10).by == "L2"
    assert lower_bound([1] * 9, 10, max_segments=2).by == "max-segments"
    assert lower_bound([5, 5], 10, lp=2).by == "LP"
    assert lower_bound([5, 5], 16, align=16).rows == 2
    with pytest.raises(PadlessError, match="no bound on whole samples exists"):
        lower_bound([11], 10)


def test_bounds_of_more_tokens_than_64_bits_hold() -> None:
    huge = LengthHistogram(lengths=np.array([1 << 31]), counts=np.array([1 << 40]))
    assert huge.tokens == 1 << 71
    assert lower_bound(huge, 1 << 31).rows == 1 << 40
