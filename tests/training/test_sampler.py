"""Which rows when: every row once, every rank alike, resumed exactly, refused when it is another stream."""

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless import plan
from padless.errors import PadlessError, ViolationError
from padless.planning import plan_with
from padless.training import Cost, PackedDataset, RowSampler, check_coverage, check_resume
from padless.training.balance import row_costs
from padless.training.dataset import Row
from padless.training.epochs import close_epoch, cut_by_tokens
from padless.training.state import Position


def rows_of(count: int, *, seed: int = 0, store: str = "store") -> Any:
    """What a sampler needs of a data set, without tokens: `count` rows of 8 slots."""
    lengths = np.random.default_rng(seed).integers(5, 9, count)
    planned = plan(lengths, 8)
    return SimpleNamespace(plan=planned, fingerprint=store, replan=lambda epoch: planned, row_costs=costs_of)


def costs_of(planned: Any, cost: Cost) -> np.ndarray:
    return row_costs(planned.row_offsets, planned.lengths, cost)


def samplers(data: Any, ranks: int, **arguments: Any) -> list[RowSampler]:
    return [RowSampler(data, ranks=ranks, rank=rank, **arguments) for rank in range(ranks)]


@st.composite
def arguments(draw: st.DrawFn) -> tuple[int, int, dict[str, Any]]:
    """Rows, ranks, and the rest of a sampler's arguments, such that an epoch holds a step."""
    ranks = draw(st.sampled_from([1, 2, 3, 4]))
    per_rank = draw(st.integers(1, 3))
    rows = draw(st.integers(ranks * per_rank * 2, 60))
    cost = draw(st.sampled_from([None, Cost(linear=1, quadratic=0.1)]))
    given: dict[str, Any] = {"seed": draw(st.integers(0, 9)), "cost": cost}
    given |= draw(st.sampled_from([{"rows": ranks * per_rank}, {"tokens": ranks * per_rank * 8}]))
    given["drop_last"] = draw(st.booleans()) if per_rank > 1 and "rows" in given else True
    if cost is not None and draw(st.booleans()):
        given["window"] = ranks * draw(st.integers(1, 4))
    return rows, ranks, given


@given(arguments(), st.integers(0, 3))
@settings(deadline=None, max_examples=80)
def test_every_row_reaches_one_rank_once_or_is_counted(case: tuple[int, int, dict], epoch: int) -> None:
    rows, ranks, given = case
    every_rank = samplers(rows_of(rows), ranks, **given)
    check_coverage(every_rank, epoch=epoch)
    for sampler in every_rank:
        sampler.set_epoch(epoch)
        assert all(len(batch) >= 1 for batch in sampler)
    if not given["drop_last"]:
        assert every_rank[0].dropped_rows == 0


@given(arguments())
@settings(deadline=None, max_examples=30)
def test_a_resumed_sampler_goes_on_exactly(case: tuple[int, int, dict]) -> None:
    rows, ranks, given = case
    data = rows_of(rows)
    steps = 2 * len(RowSampler(data, ranks=ranks, rank=0, **given)) + 1
    check_resume(lambda: RowSampler(data, ranks=ranks, rank=ranks - 1, **given), steps=steps)


@given(arguments(), st.sampled_from([1, 2, 3, 4]), st.data())
@settings(deadline=None, max_examples=60)
def test_another_number_of_ranks_goes_on_with_the_same_steps(case: tuple[int, int, dict], other: int, data) -> None:
    rows, ranks, given = case
    if given.get("window"):
        given["similar"] = ranks
    if "rows" in given and given["rows"] % other:
        return
    source = rows_of(rows)
    first = RowSampler(source, ranks=ranks, rank=0, **given)
    step = data.draw(st.integers(0, len(first) - 1))
    whole = first.epoch_steps(0)
    state = json.loads(json.dumps(first.state_at(Position(epoch=0, step=step))))
    try:
        resumed = samplers(source, other, **given)
        for sampler in resumed:
            sampler.load_state_dict(state)
    except PadlessError:
        # Refused only where the two cut the epoch's end in another place, or a budget is too small for the ranks.
        assert not given["drop_last"] or ("tokens" in given and other > ranks)
        return
    found = sorted(row for sampler in resumed for batch in sampler for row in batch)
    assert found == sorted(whole.order[whole.step_offsets[step] : len(whole.order) - first.dropped_rows].tolist())


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    data = rows_of(40)
    orders = set()
    for seed in (0, 1):
        sampler = RowSampler(data, rows=4, drop_last=True, seed=seed)
        for _ in range(3):
            orders.add(tuple(row for batch in sampler for row in batch))
    assert len(orders) == 6
    again = RowSampler(data, rows=4, drop_last=True, seed=0)
    assert tuple(row for batch in again for row in batch) in orders


def test_the_order_is_the_same_on_every_machine_for_ever() -> None:
    """Raw PCG64 bits are what numpy keeps; this order must never change, or runs could not be resumed."""
    sampler = RowSampler(rows_of(8), rows=4, drop_last=True, seed=7)
    assert list(sampler) == [[6, 3, 4, 0], [2, 7, 5, 1]]


def test_a_new_iteration_starts_its_epoch_again_unless_a_state_was_loaded() -> None:
    sampler = RowSampler(rows_of(20), rows=4, drop_last=True)
    whole = list(RowSampler(rows_of(20), rows=4, drop_last=True))
    iterator = iter(sampler)
    assert [next(iterator), next(iterator)] == whole[:2]
    state = sampler.state_dict()
    assert next(iter(sampler)) == whole[0]
    sampler.load_state_dict(state)
    assert list(sampler) == whole[2:]
    assert sampler.epoch == 1


def test_set_epoch_keeps_a_loaded_position() -> None:
    sampler = RowSampler(rows_of(20), rows=4, drop_last=True)
    state = sampler.state_at(Position(epoch=2, step=3))
    sampler.load_state_dict(state)
    sampler.set_epoch(2)
    assert len(list(sampler)) == len(sampler) - 3


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"seed": 1}, ["seed: state has 0, this sampler has 1"]),
        ({"rows": 8}, ["rows: state has 4, this sampler has 8"]),
        ({"cost": Cost(quadratic=1)}, ["cost: state has None", "'quadratic': 1"]),
        ({"drop_last": False}, ["drop_last: state has True, this sampler has False"]),
        ({"data": rows_of(40, store="other")}, ["store: state has 'store', this sampler has 'other'"]),
        ({"data": rows_of(40, seed=5)}, ["plan: state has"]),
        ({"replan": True}, ["replan: state has False, this sampler has True"]),
    ],
)
def test_a_state_of_another_stream_is_refused_with_both_values(change: dict, shown: list[str]) -> None:
    state = RowSampler(rows_of(40), rows=4, drop_last=True).state_dict()
    given = {"rows": 4, "drop_last": True} | change
    sampler = RowSampler(given.pop("data", rows_of(40)), **given)
    with pytest.raises(PadlessError) as error:
        sampler.load_state_dict(state)
    assert all(text in str(error.value) for text in shown), str(error.value)


@pytest.mark.parametrize("change", [{"version": 2}, {"format": "torch"}])
def test_a_state_of_another_version_is_refused(change: dict) -> None:
    sampler = RowSampler(rows_of(20), rows=4, drop_last=True)
    with pytest.raises(PadlessError, match="not a state of this sampler"):
        sampler.load_state_dict(sampler.state_dict() | change)


def test_a_step_that_other_ranks_do_not_have_is_refused() -> None:
    """18 rows in steps of 8: over 1 rank 8, 8, 2; over 4 ranks the last two are 6 and 4."""
    alone = RowSampler(rows_of(18), rows=8, drop_last=False)
    assert np.diff(alone.epoch_steps().step_offsets).tolist() == [8, 8, 2]
    four = RowSampler(rows_of(18), rows=8, drop_last=False, ranks=4, rank=0)
    assert np.diff(four.epoch_steps().step_offsets).tolist() == [8, 6, 4]
    four.load_state_dict(alone.state_at(Position(epoch=0, step=1)))
    with pytest.raises(PadlessError, match=r"16 rows read over 1 ranks.*ends at 14 rows"):
        four.load_state_dict(alone.state_at(Position(epoch=0, step=2)))


def test_the_state_is_small_plain_and_versioned() -> None:
    state = RowSampler(rows_of(20), tokens=32, drop_last=True, cost=Cost(linear=1)).state_dict()
    assert json.loads(json.dumps(state)) == state
    assert len(json.dumps(state)) < 1000
    assert state["version"] == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one"),
        ({"rows": 4, "tokens": 9}, "exactly one"),
        ({"rows": 0}, "rows=0"),
        ({"rows": 6, "ranks": 4, "rank": 0}, "do not divide over 4 ranks"),
        ({"rows": 4, "ranks": 4}, "both or neither"),
        ({"rows": 4, "ranks": 4, "rank": 4}, "0 <= rank < ranks"),
        ({"rows": 4, "window": 8}, "needs cost="),
        ({"rows": 4, "window": 8, "cost": Cost(linear=1), "similar": 3}, "no multiple of similar"),
        ({"rows": 4, "seed": -1}, "seed=-1"),
        ({"rows": 4, "seed": 1 << 32}, "seed=4294967296"),
        ({"tokens": 7, "ranks": 2, "rank": 0}, "cannot give each of 2 ranks a row"),
        ({"rows": 64}, "not one step"),
    ],
)
def test_contradictions_are_refused_before_training(given: dict, message: str) -> None:
    with pytest.raises(PadlessError, match=message):
        RowSampler(rows_of(20), drop_last=True, **given)


def test_leftover_rows_too_few_for_the_ranks_need_a_decision() -> None:
    with pytest.raises(PadlessError, match="drop_last=True"):
        close_epoch(np.array([0, 4, 8]), 9, ranks=4, drop_last=False)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(9, 40))
@settings(deadline=None)
def test_token_steps_are_as_long_as_the_budget_allows(row_tokens: list[int], budget: int) -> None:
    """Against a loop that adds rows until the next would not fit."""
    cuts, held = [0], 0
    for row, tokens in enumerate(row_tokens):
        if held + tokens > budget:
            cuts.append(row)
            held = 0
        held += tokens
    if held == budget:
        cuts.append(len(row_tokens))
    assert cut_by_tokens(np.array(row_tokens), budget, 1).tolist() == cuts


def test_several_processes_must_say_their_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    with pytest.raises(PadlessError, match="4 processes train together"):
        RowSampler(rows_of(20), rows=4, drop_last=True)
    assert RowSampler(rows_of(20), rows=4, drop_last=True, ranks=2, rank=1).ranks == 2


def test_imbalance_is_reported_per_step_and_dealing_lowers_it() -> None:
    cost = Cost(quadratic=1)
    lengths = np.random.default_rng(0).lognormal(3, 1, 4000).clip(1, 500).astype(int)
    data: Any = SimpleNamespace(plan=plan(lengths, 512), fingerprint="s", row_costs=costs_of)
    plain = RowSampler(data, rows=16, drop_last=True, ranks=4, rank=0)
    dealt = RowSampler(data, rows=16, drop_last=True, ranks=4, rank=0, cost=cost)
    windowed = RowSampler(data, rows=16, drop_last=True, ranks=4, rank=0, cost=cost, window=64)
    assert len(plain.imbalance(cost=cost)) == len(plain)
    assert windowed.imbalance().mean() < dealt.imbalance().mean() < plain.imbalance(cost=cost).mean()
    assert windowed.imbalance().min() >= 1


def test_a_new_plan_every_epoch_gives_samples_other_neighbours(dataset: PackedDataset) -> None:
    sampler = RowSampler(dataset, rows=4, drop_last=False, replan=True)
    epochs = [[row for batch in sampler for row in batch] for _ in range(3)]
    neighbours = [{frozenset(row.sample_ids.tolist()) for row in rows} for rows in epochs]
    assert neighbours[0] != neighbours[1] != neighbours[2]
    for rows in epochs:
        assert all(isinstance(row, Row) for row in rows)
        assert sorted(np.concatenate([row.sample_ids for row in rows]).tolist()) == list(range(len(dataset.store)))
    spec = dataclasses.replace(dataset.plan.spec, seed=1)
    expected = plan_with(dataset.store.lengths, spec)
    assert neighbours[1] == {frozenset(expected.row(r)[0].tolist()) for r in range(expected.num_rows)}
    check_resume(lambda: RowSampler(dataset, rows=4, drop_last=False, replan=True), steps=2 * len(sampler), every=3)


class Forgetful(RowSampler):
    """Loses a batch when it resumes."""

    def load_state_dict(self, state: dict[str, Any]) -> Position:
        position = super().load_state_dict(state)
        self.go_to(Position(epoch=position.epoch, step=min(position.step + 1, len(self) - 1)))
        return position


def test_the_contract_test_finds_a_loader_that_loses_a_batch() -> None:
    with pytest.raises(ViolationError, match="differs from one that was not stopped"):
        check_resume(lambda: Forgetful(rows_of(20), rows=4, drop_last=True), steps=8)


def test_the_coverage_test_finds_ranks_that_share_rows() -> None:
    with pytest.raises(ViolationError, match="not delivered exactly once"):
        check_coverage([RowSampler(rows_of(20), rows=4, drop_last=True, ranks=2, rank=0) for _ in range(2)])
