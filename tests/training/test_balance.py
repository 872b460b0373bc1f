"""Costs, dealing, and the order that similar rows come in."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless import plan
from padless.errors import PadlessError
from padless.training import Cost
from padless.training.balance import deal, group_similar, imbalance, row_costs
from padless.training.epochs import EpochSpec, make_epoch_steps, random_keys

COSTS = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=40).map(np.array)


def test_a_row_costs_what_the_formula_says() -> None:
    p = plan([5, 3, 9, 2, 7], 12)
    cost = Cost(linear=2.0, quadratic=0.5)
    expected = [
        sum(2.0 * n + 0.5 * n * n for n in p.lengths[p.row_offsets[r] : p.row_offsets[r + 1]].tolist())
        for r in range(p.num_rows)
    ]
    np.testing.assert_allclose(row_costs(p.row_offsets, p.lengths, cost), expected)
    assert cost.of([5, 3]) == 2.0 * 8 + 0.5 * 34


@pytest.mark.parametrize(("linear", "quadratic"), [(0, 0), (-1, 1), (1, -1)])
def test_a_cost_that_ranks_nothing_is_refused(linear: float, quadratic: float) -> None:
    with pytest.raises(PadlessError, match="cannot rank rows"):
        Cost(linear=linear, quadratic=quadratic)


@given(COSTS, st.integers(1, 8))
@settings(deadline=None, max_examples=60)
def test_dealing_gives_every_row_to_one_rank_in_equal_counts(costs: np.ndarray, ranks: int) -> None:
    shares = deal(costs, ranks)
    counts = [len(share) for share in shares]
    assert sorted(itertools.chain(*(share.tolist() for share in shares))) == list(range(len(costs)))
    assert max(counts) - min(counts) <= 1


@given(st.lists(st.integers(1, 50), min_size=4, max_size=8), st.just(2))
@settings(deadline=None, max_examples=60)
def test_dealing_two_ranks_is_close_to_the_best_deal(costs: list[int], ranks: int) -> None:
    """Against all deals with equal counts: within 4/3, Graham's bound for longest processing time first."""
    costs = costs[: len(costs) // 2 * 2]
    slowest = max(sum(costs[i] for i in share) for share in deal(np.array(costs, float), ranks))
    total = sum(costs)
    best = min(max(sum(half), total - sum(half)) for half in itertools.combinations(costs, len(costs) // 2))
    assert slowest <= 4 / 3 * best + 1e-9


@given(st.integers(1, 200), st.integers(1, 6), st.integers(1, 6), st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_grouping_moves_no_row_far_and_makes_runs_of_neighbours(rows: int, similar: int, runs: int, seed: int) -> None:
    window = similar * runs
    costs = np.random.default_rng(seed).random(rows)
    order = np.argsort(random_keys(rows, seed))
    grouped = group_similar(order, costs, window=window, similar=similar, keys=random_keys(rows, seed, 1))
    place = np.empty(rows, int)
    place[grouped] = np.arange(rows)
    assert sorted(grouped.tolist()) == list(range(rows))
    assert np.abs(place[order] - np.arange(rows)).max() < window
    for start in range(0, rows, window):
        block = grouped[start : start + window]
        ranking = np.argsort(np.argsort(costs[block]))
        for run in range(0, len(block) - len(block) % similar, similar):
            own = np.sort(ranking[run : run + similar])
            assert (np.diff(own) == 1).all(), "a run holds neighbours in cost"


def test_azure_chat_rows_are_dealt_evenly(shared_data) -> None:
    """8 ranks, rows of 16,384 tokens, attention alone: at most 1.05 where chance gives far more."""
    lengths = np.load(shared_data / "azure_llm_2023_conv_lengths.npy").sum(1)
    p = plan(lengths, 16_384)
    cost = Cost(quadratic=1)
    costs = row_costs(p.row_offsets, p.lengths, cost)

    def mean_imbalance(rows: int, *, window: int | None, dealt: bool) -> float:
        spec = EpochSpec(rows=rows, drop_last=True, cost=cost, window=window, similar=8 if window else None)
        epoch_steps = make_epoch_steps(spec, epoch=0, ranks=8, row_tokens=np.ones(p.num_rows), costs=costs)
        found = []
        for step in range(epoch_steps.num_steps):
            own = costs[epoch_steps.step(step)]
            shares = deal(own, 8) if dealt else np.split(np.arange(rows), 8)
            found.append(imbalance(np.array([own[share].sum() for share in shares])))
        return float(np.mean(found))

    assert mean_imbalance(8, window=512, dealt=True) <= 1.05
    assert mean_imbalance(64, window=None, dealt=True) <= 1.05
    assert mean_imbalance(8, window=None, dealt=False) > 1.5
    assert mean_imbalance(64, window=None, dealt=False) > 1.2
