"""A cluster on paper, against clocks kept by hand."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.errors import PadlessError
from padless.lengths import LengthHistogram
from padless.measure.cost import CostModel
from padless.measure.distributions import NAMED, draw
from padless.measure.simulate import SHAPES, ModelShape, simulate, simulate_step
from padless.training.scheduling import Cost, SchedulingSpec, schedule

TOKENS = CostModel(constant=0.0, linear=1.0, quadratic=0.0)


def pipeline_of(times: list[float], stages: int) -> float:
    """Every micro-batch goes through every stage; a stage takes them in order, one at a time."""
    free = [0.0] * stages
    for seconds in times:
        arrived = 0.0
        for stage in range(stages):
            arrived = free[stage] = max(free[stage], arrived) + seconds
    return free[-1]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 32), min_size=8, max_size=40),
    dp=st.integers(1, 2),
    pp=st.integers(1, 4),
    strategy=st.sampled_from(["dp-balanced", "megatron", "wlb"]),
)
def test_pipelines_and_memory_equal_a_clock_kept_by_hand(lengths: list[int], dp: int, pp: int, strategy: str) -> None:
    spec = SchedulingSpec(
        dp=dp, pp=pp, max_seqlen_per_rank=32, cost=Cost(linear=1, quadratic=1), max_delay=0, empty="allow"
    )
    cost = CostModel(constant=2.0, linear=0.5, quadratic=0.25, step=3.0)
    made = schedule(lengths, spec, strategy=strategy)
    ends, busy, held, each = [], [], [], {}
    for rank in range(dp):
        sizes = [np.array([lengths[i] for i in share.ids]) for share in made.of_rank(rank)]
        times = [(2.0 + 0.5 * n.sum() + 0.25 * np.square(n).sum()) / pp for n in sizes]
        ends.append(pipeline_of(times, pp))
        busy.append(sum(times))
        for share, seconds in zip(made.of_rank(rank), times, strict=True):
            each[share.microbatch] = max(each.get(share.microbatch, 0.0), seconds)
        held.append(sum(sorted((int(n.sum()) for n in sizes), reverse=True)[:pp]) / pp)
    step = simulate_step(made, cost)
    assert step.seconds == pytest.approx(max(ends) + 3.0)
    assert step.lockstep == pytest.approx(pipeline_of([each[n] for n in sorted(each)], pp) + 3.0)
    np.testing.assert_allclose(step.busy, busy)
    assert step.peak_slots == pytest.approx(max(held))
    assert step.idle == pytest.approx(1 - sum(busy) / (dp * (max(ends) + 3.0)))
    assert step.tokens == sum(made.samples.lengths)


def test_a_group_begins_when_all_its_members_are_free() -> None:
    """Two ranks share 8 tokens after one of them alone ran 5: the other waits for them."""
    spec = SchedulingSpec(dp=2, max_seqlen_per_rank=8, cost=Cost(linear=1), sizes="free")
    made = schedule([8, 5], spec, strategy="megatron")
    late = type(made)(
        spec=spec,
        samples=made.samples.take(np.array([1, 0])),
        bin_offsets=np.array([0, 1, 2]),
        microbatch=np.array([0, 1]),
        first_rank=np.array([1, 0]),
        width=np.array([1, 2]),
        waiting=made.waiting,
    )
    step = simulate_step(late, TOKENS)
    assert step.seconds == 5 + 8 / 2
    assert step.busy.tolist() == [4, 9]
    assert step.peak_slots == 5


def test_means_are_over_steps_and_waiting_tokens_are_counted() -> None:
    spec = SchedulingSpec(dp=2, max_seqlen_per_rank=100, cost=Cost(linear=1), max_delay=1)
    lengths = [100, *[1] * 20] * 2
    made = simulate(lengths, spec, "wlb", global_batch=21, cost=TOKENS, bytes_per_slot=2.0)
    # The first step makes the 100 wait; in the second there is one for each rank.
    assert made.steps == 2
    assert made.step_seconds == (10 + 110) / 2
    assert made.worst_seconds == 110
    assert made.tokens_per_second == 240 / 120
    assert (made.imbalance, made.idle, made.padding) == (1.0, 0.0, 0.0)
    assert made.waiting == 0.5
    assert made.waited == pytest.approx(100 / 240)
    assert made.peak_bytes >= 200


def test_alignment_is_padding_that_takes_time() -> None:
    spec = SchedulingSpec(dp=1, cp=2, max_seqlen_per_rank=16, cost=Cost(linear=1), align=8)
    made = simulate([5, 8], spec, "dp-balanced", global_batch=2, cost=TOKENS)
    assert made.padding == pytest.approx(3 / 16)
    assert made.step_seconds == 8


def test_the_model_costs_what_its_shape_says() -> None:
    shape = ModelShape(layers=2, hidden=8, parameters=1000)
    cost = shape.cost(tflops=1e-12, tensor_parallel=2)
    assert (cost.linear, cost.quadratic) == (3000, 48)
    assert shape.bytes_per_slot(tensor_parallel=2) == 34 * 8
    assert 40_000 < SHAPES["7b"].cost(tflops=400).crossover < 60_000


def test_too_few_lengths_are_refused() -> None:
    spec = SchedulingSpec(dp=1, max_seqlen_per_rank=16, cost=Cost(linear=1))
    with pytest.raises(PadlessError, match="1 lengths make no global batch of 2"):
        simulate([5], spec, "dp-balanced", global_batch=2, cost=TOKENS)


def test_lengths_are_drawn_once_before_any_comes_again() -> None:
    values = np.arange(1, 8)
    drawn = draw(values, 21, seed=3)
    assert np.bincount(drawn, minlength=8)[1:].tolist() == [3] * 7
    assert sorted(drawn[:7]) == values.tolist()
    assert draw(values, 21, seed=3).tolist() == drawn.tolist() != draw(values, 21, seed=4).tolist()


def test_histograms_and_named_distributions() -> None:
    drawn = draw(LengthHistogram(lengths=np.array([3, 9]), counts=np.array([3, 1])), 4000)
    assert set(drawn.tolist()) == {3, 9}
    assert 0.72 < (drawn == 3).mean() < 0.78
    for name in NAMED:
        lengths = draw(name, 50_000)
        assert 1 <= lengths.min() < lengths.max() == 131_072
    assert abs(np.median(lengths) / 1024 - 1) < 0.05
    quantiles = np.quantile(draw("log-normal:100:1:100000", 50_000), [0.1, 0.5, 0.9])
    assert all(a < b for a, b in pairwise(quantiles))


@pytest.mark.parametrize("name", ["log-normal:0:1:5", "log-normal:9:1:5", "log-normal:2:0:5", "log-normal:a:1:5", "x"])
def test_what_is_no_distribution_is_refused(name: str) -> None:
    with pytest.raises(PadlessError, match="expected log-normal:MEDIAN:SIGMA:LONGEST"):
        draw(name, 3)
