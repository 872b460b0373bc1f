"""Strategies against their definitions, and the promises for all of them."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from padless.errors import PadlessError
from padless.lengths import LengthHistogram
from padless.planning import STRATEGIES, OnlinePacker, PlanSpec, check_plan, plan

from . import references

EXACT = {
    "first-fit-decreasing": references.first_fit_decreasing,
    "best-fit-decreasing": references.best_fit_decreasing,
    "lpfhp": references.best_fit_decreasing,
    "spfhp": references.spfhp,
    "next-fit": references.next_fit,
    "first-fit": references.first_fit,
}
instances = st.integers(1, 40).flatmap(
    lambda capacity: st.tuples(
        st.lists(st.integers(1, capacity), min_size=1, max_size=40),
        st.just(capacity),
        st.none() | st.integers(1, 5),
    )
)


def contents(planned) -> list[list[int]]:
    return sorted(sorted(planned.row(r)[2].tolist()) for r in range(len(planned)))


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=60, deadline=None)
@given(instances)
def test_equals_its_definition(name: str, instance: tuple) -> None:
    lengths, capacity, most = instance
    expected = EXACT[name](lengths, capacity, most)
    planned = plan(lengths, capacity, strategy=name, max_segments=most)
    assert contents(planned) == sorted(map(sorted, expected))


@pytest.mark.parametrize("name", ["next-fit", "first-fit", "concat"])
def test_strategies_in_order_keep_the_order(name: str) -> None:
    lengths = [3, 3, 9, 1, 5, 2]
    planned = plan(lengths, 10, strategy=name)
    first = planned.sample_ids[planned.row_offsets[:-1]].tolist()
    assert first == sorted(first)
    assert all((np.diff(planned.row(r)[0]) > 0).all() for r in range(len(planned)))


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 90), min_size=1, max_size=50),
    st.integers(8, 64),
    st.sampled_from([1, 4, 8]),
    st.none() | st.integers(1, 4),
    st.sampled_from(["truncate", "split", "drop"]),
    st.integers(0, 3),
    st.none() | st.integers(1, 30),
)
@example([90], 8, 8, 1, "drop", 0, None)
@example([8] * 50, 8, 1, None, "split", 2, 7)
def test_promises_hold(name, lengths, capacity, align, most, oversize, seed, window) -> None:
    wanted = {"align": align, "max_segments": most, "oversize": oversize, "seed": seed, "window": window}
    make = lambda: plan(lengths, capacity, strategy=name, **wanted)  # noqa: E731
    if oversize == "drop" and min(lengths) > capacity // align * align:
        with pytest.raises(PadlessError, match="dropping leaves nothing"):
            make()
        return
    planned = make()
    check_plan(planned, np.array(lengths))
    assert planned == make()


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "concat"])
@settings(max_examples=25, deadline=None)
@given(
    st.integers(6, 20).flatmap(lambda c: st.tuples(st.lists(st.integers(1, c), min_size=1, max_size=9), st.just(c))),
    st.none() | st.integers(1, 3),
)
def test_no_plan_beats_brute_force_and_no_bound_is_above_it(name: str, instance: tuple, most: int | None) -> None:
    lengths, capacity = instance
    fewest = references.fewest_rows(lengths, capacity, most)
    certificate = plan(lengths, capacity, strategy=name, max_segments=most).certificate
    assert certificate.lower_bound <= fewest <= certificate.rows
    if name == "optimal" and certificate.rows > fewest:
        assert certificate.gap > 0


def test_optimal_beats_what_defeats_best_fit() -> None:
    lengths = [7, 6, 5, 5, 4, 3] * 100  # 7 + 3, 6 + 4, 5 + 5 fill rows; 4 + 3 + 3 tempts
    lengths += [4, 3, 3] * 100
    best = plan(lengths, 10, strategy="best-fit-decreasing")
    found = plan(lengths, 10, strategy="optimal")
    assert found.num_rows == 400
    assert found.certificate.gap == 0
    assert best.num_rows >= found.num_rows
    auto = plan(lengths, 10, strategy="auto", tolerance=0.0)
    assert auto.num_rows == 400


def test_seeds_deal_other_samples_to_as_many_rows() -> None:
    lengths = np.random.default_rng(0).integers(1, 50, 500)
    one, other = plan(lengths, 64, seed=1), plan(lengths, 64, seed=2)
    assert one.num_rows == other.num_rows
    assert not np.array_equal(one.sample_ids, other.sample_ids)
    assert contents(one) == contents(other)


def test_windows_share_no_rows() -> None:
    lengths = np.random.default_rng(0).integers(1, 50, 500)
    planned = plan(lengths, 64, window=100, seed=5)
    assert planned.num_rows >= plan(lengths, 64).num_rows
    ends = np.cumsum([planned.row(r)[0].size for r in range(len(planned))])
    assert set(range(100, 501, 100)) <= set(ends.tolist())


def test_concat_fills_rows_and_counts_what_it_cut() -> None:
    planned = plan([5, 30, 5], 8, strategy="concat")
    assert planned.num_rows == 5
    assert planned.accounting.tail_padding == 0
    assert planned.accounting.split_samples == 1
    assert planned.certificate.bound_by == "L1"
    check_plan(planned, np.array([5, 30, 5]))


def test_balanced_rows_cost_nearly_the_same() -> None:
    lengths = np.random.default_rng(0).lognormal(5, 1, 4000).astype(int).clip(1, 512)

    def spread_of_cost(name: str) -> float:
        planned = plan(lengths, 4096, strategy=name, linear=1.0, quadratic=0.01)
        sizes = planned.lengths.astype(float)
        cost = np.add.reduceat(sizes + 0.01 * sizes**2, planned.row_offsets[:-1])
        return float(cost.max() / cost.mean())

    assert spread_of_cost("balanced") < 1.01
    assert spread_of_cost("best-fit-decreasing") > 1.3


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 16), min_size=1, max_size=120), st.integers(1, 8), st.integers(1, 20))
def test_no_sample_of_a_stream_waits_longer_than_promised(lengths: list[int], lookahead: int, wait: int) -> None:
    packer = OnlinePacker(capacity=16, lookahead=lookahead, max_wait=wait)
    sent: list[int] = []
    for arrived, length in enumerate(lengths):
        for row in packer.add(length):
            assert sum(lengths[i] for i in row) <= 16
            sent += row
        assert all(arrived - sample < wait for sample in set(range(arrived + 1)) - set(sent))
    sent += [sample for row in packer.flush() for sample in row]
    assert sorted(sent) == list(range(len(lengths)))


def test_a_stream_resumes_exactly() -> None:
    lengths = np.random.default_rng(1).integers(1, 60, 300).tolist()
    whole = OnlinePacker(capacity=64, lookahead=4)
    rows = [row for length in lengths for row in whole.add(length)] + whole.flush()
    before, after = OnlinePacker(capacity=64, lookahead=4), OnlinePacker(capacity=64, lookahead=4)
    found = [row for length in lengths[:111] for row in before.add(length)]
    after.load_state_dict(before.state_dict())
    assert found + [row for length in lengths[111:] for row in after.add(length)] + after.flush() == rows
    with pytest.raises(PadlessError, match="this packer has"):
        OnlinePacker(capacity=65, lookahead=4).load_state_dict(before.state_dict())


def test_unknown_names_and_large_nnlshp_are_refused() -> None:
    with pytest.raises(PadlessError, match="there are none, next-fit"):
        plan([1], 8, strategy="best")
    with pytest.raises(PadlessError, match="use strategy='optimal'"):
        plan([1], 4096, strategy="nnlshp")


@pytest.mark.parametrize("name", [n for n, s in STRATEGIES.items() if s.works_on == "histogram" and n != "nnlshp"])
@pytest.mark.parametrize(
    ("lengths", "counts", "capacity"),
    [
        ([7], [1_000_000], 64),
        ([1], [1], 1),
        ([1], [1_000_000], 1),
        ([64], [10], 64),
        ([1, 1 << 20], [5, 1], 1 << 20),
    ],
    ids=["all equal", "capacity 1", "a million identical", "full rows", "one giant"],
)
def test_extremes(name: str, lengths: list[int], counts: list[int], capacity: int) -> None:
    histogram = LengthHistogram(lengths=np.array(lengths), counts=np.array(counts))
    patterns, _ = STRATEGIES[name].pack(histogram.lengths, histogram.counts, capacity, PlanSpec(capacity=capacity))
    placed, times = patterns.totals()
    assert placed.tolist() == lengths
    assert times.tolist() == counts
    assert int(patterns.used.max()) <= capacity
