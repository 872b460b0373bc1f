"""What a report counts, held against counting by hand."""

from collections.abc import Callable

import numpy as np
import pytest

from padless import PackedDataset, TokenStore, plan
from padless.report import make_report
from padless.report.ranks import USUAL_COST, balance
from padless.training import Cost, RowSampler


def test_rows_are_counted_as_they_are_read(store: TokenStore) -> None:
    facts = make_report(store).facts
    batches = [PackedDataset(store)[row] for row in range(facts.plan.num_rows)]
    assert facts.row_tokens.tolist() == [batch.num_tokens for batch in batches]
    assert facts.row_segments.tolist() == [batch.num_segments for batch in batches]
    assert facts.slots_before == 64 * len(store)
    assert facts.waste_before == 1 - store.lengths.sum() / (64 * len(store))
    assert all(loss.count == 0 for loss in facts.losses())


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("truncate", {"samples truncated": 1, "targets in no row": 70 + 8 - 64 + 1}),
        ("drop", {"samples dropped": 1, "targets in no row": 70 + 1}),
        ("split", {"samples split": 1, "targets in no row": 1}),
    ],
)
def test_what_is_not_whole_is_counted(
    make_store: Callable[..., TokenStore], policy: str, expected: dict[str, int]
) -> None:
    records = [{"prompt": "12345678", "completion": "x" * 70}, {"prompt": "a", "completion": "b"}]
    report = make_report(make_store(records, oversize=policy))
    assert {loss.what: loss.count for loss in report.facts.losses() if loss.count} == expected
    for what, count in expected.items():
        assert f'<th scope="row">{what}</th><td>{count}</td>' in report.html()
        assert f"{count} {what}" in report.markdown()
    assert "Nothing was lost" not in report.html()


@pytest.mark.parametrize("cost", [USUAL_COST, Cost(quadratic=1), Cost(linear=1)])
def test_balance_is_that_of_the_sampler_that_trains(make_store: Callable[..., TokenStore], cost: Cost) -> None:
    records = [{"prompt": "p" * (n * n % 41 + 1), "completion": "c" * (n * 7 % 19 + 1)} for n in range(300)]
    dataset = PackedDataset(make_store(records))
    found = balance(dataset.plan, cost=cost, ranks=4)
    assert found is not None
    assert (found.ranks, found.rows_per_rank) == (4, 4)
    samplers = [
        RowSampler(dataset, rows=16, drop_last=True, ranks=4, rank=0, cost=None),
        RowSampler(dataset, rows=16, drop_last=True, ranks=4, rank=0, cost=cost),
    ]
    for way, sampler in zip(found.ways, samplers, strict=False):
        steps = sampler.imbalance(cost=cost)
        assert found.steps == len(steps)
        assert found.left_out == sampler.dropped_rows
        assert way.mean == pytest.approx(steps.mean())
        assert way.worst == pytest.approx(steps.max())
        assert way.loads.max() == pytest.approx(steps.max())
    assert found.ways[1].mean <= found.ways[0].mean + 1e-12


def test_fewer_rows_than_ranks_are_not_dealt() -> None:
    made = plan(np.full(7, 10), capacity=10)
    assert balance(made) is None
    one_each = balance(plan(np.full(8, 10), capacity=10))
    assert one_each is not None
    assert (one_each.rows_per_rank, one_each.steps, one_each.ways[0].worst) == (1, 1, 1.0)
