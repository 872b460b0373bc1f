"""Steps of a toy model: all arms train the same, an arm that does not is found, and weights stay where they were."""

from typing import Any

import numpy as np
import pytest
import torch

from padless.errors import PadlessError, ViolationError
from padless.measure import Arm, Trainee, arms, calibrate, measure_arms, measure_savings
from padless.measure.calibrate import median_error
from padless.measure.step import make_step
from padless.rows import Batch

VOCABULARY = 11
LENGTHS = [5, 9, 2, 7, 12, 3]


class Toy(torch.nn.Module):
    """Every token sees the mean of its own sample so far: it mixes tokens, so a leak would show."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(VOCABULARY, 8).double()
        self.out = torch.nn.Linear(8, VOCABULARY).double()

    def by_segment(self, batch: Batch, *, leak: bool = False) -> torch.Tensor:
        states = self.embed(batch.input_ids)
        owner = batch.segment_ids if not leak else torch.ones_like(batch.segment_ids)
        order = torch.arange(len(owner))
        sees = ((owner[:, None] == owner[None]) & (order[:, None] >= order[None])).double()
        return self.out(sees @ states / sees.sum(1, keepdim=True))


def toy(*, dense_leaks: bool = False) -> Trainee:
    model = Toy()
    run = model.by_segment
    return Trainee(
        name="toy",
        vocabulary=VOCABULARY,
        device="cpu",
        parameters=list(model.parameters()),
        padded=run,
        masked=run,
        dense=lambda batch: run(batch, leak=dense_leaks),
        packed=run,
    )


def samples() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, VOCABULARY, length) for length in LENGTHS]


class Caught:
    """An optimizer that keeps the gradients it is given."""

    def __init__(self, trainee: Trainee) -> None:
        self.parameters = trainee.parameters
        self.gradients: list[torch.Tensor] = []

    def step(self) -> None:
        self.gradients = [parameter.grad.clone() for parameter in self.parameters if parameter.grad is not None]

    def zero_grad(self, set_to_none: bool) -> None:
        assert set_to_none
        for parameter in self.parameters:
            parameter.grad = None


def reference(trainee: Trainee) -> tuple[float, list[torch.Tensor]]:
    """One sample after another, plain cross entropy, divided by all targets."""
    model: Any = trainee.padded.__self__
    losses = []
    for ids in samples():
        states = model.embed(torch.from_numpy(ids))
        mean = torch.stack([states[: i + 1].mean(0) for i in range(len(ids))])
        logits = model.out(mean)
        losses.append(torch.nn.functional.cross_entropy(logits[:-1], torch.from_numpy(ids)[1:], reduction="sum"))
    loss = torch.stack(losses).sum() / sum(length - 1 for length in LENGTHS)
    return loss.item(), list(torch.autograd.grad(loss, list(trainee.parameters)))


def test_every_arm_has_the_loss_and_the_gradients_of_the_samples_alone() -> None:
    trainee = toy()
    loss, gradients = reference(trainee)
    for arm in arms(LENGTHS, length=16, batch=2, capacity=16):
        caught: Any = Caught(trainee)
        assert make_step(trainee, arm, samples(), caught)() == pytest.approx(loss, rel=1e-12), arm.name
        for found, expected in zip(caught.gradients, gradients, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-14)


def test_measured_arms_are_rated_against_the_first() -> None:
    trainee = toy()
    before = [parameter.detach().clone() for parameter in trainee.parameters]
    told: list[str] = []
    result = measure_arms(
        trainee, arms(LENGTHS, length=16, batch=2, capacity=16), samples(), repeats=2, progress=told.append
    )
    assert result.padding == pytest.approx(1 - sum(LENGTHS) / (16 * len(LENGTHS)))
    assert result.ideal_ratio == pytest.approx(16 * len(LENGTHS) / sum(LENGTHS))
    first, last = result.arms[0], result.named("padless")
    assert result.ratio(first) == 1
    assert result.ratio(last) == pytest.approx(last.real_tokens_per_second / first.real_tokens_per_second)
    assert result.share(last) == pytest.approx(result.ratio(last) / result.ideal_ratio)
    assert len({round(each.loss, 10) for each in result.arms}) == 1
    assert told.count("padless") == 2
    for parameter, was in zip(trainee.parameters, before, strict=True):
        assert torch.equal(parameter, was)


def test_an_arm_that_computes_something_else_is_found() -> None:
    with pytest.raises(ViolationError, match="the loss of 'dense mask' is"):
        measure_arms(
            toy(dense_leaks=True), arms(LENGTHS, length=16, batch=2, capacity=16), samples(), repeats=1, memory=False
        )


def test_arms_of_other_samples_are_refused() -> None:
    with pytest.raises(PadlessError, match="other lengths"):
        measure_arms(toy(), arms([1, 2, 3, 4, 5, 6], length=8, batch=2, capacity=8), samples())


def test_a_cost_model_is_fitted_and_its_error_against_other_arms_is_known() -> None:
    trainee = toy()
    cost = calibrate(trainee, length=64, capacity=128, repeats=2)
    assert cost.linear + cost.quadratic + cost.constant > 0
    assert cost.step > 0
    chosen: tuple[Arm, ...] = arms(LENGTHS, length=16, batch=2, capacity=16)
    assert 0 <= median_error(cost, measure_arms(trainee, chosen, samples(), repeats=1)) < float("inf")


def test_the_curve_has_a_point_per_rate() -> None:
    trainee = toy()
    cost = calibrate(trainee, length=32, capacity=64, repeats=1)
    told: list[str] = []
    curve = measure_savings(
        trainee, cost, length=32, paddings=(0.25, 0.75), count=4, batch=2, repeats=1, progress=told.append
    )
    assert [round(point.padding, 2) for point in curve] == [0.25, 0.75]
    assert all(point.padded > 0 and point.dynamic > 0 and point.packed > 0 for point in curve)
    assert "75% padding, padless" in told
