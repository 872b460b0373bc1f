"""The cost model: what is put in comes out, never below zero, and what cannot be known is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.errors import PadlessError
from padless.measure import CostModel, fit
from padless.measure.calibrate import shapes
from padless.measure.cost import _nonnegative
from padless.measure.workloads import packed, padded

SHAPES = shapes(length=512, capacity=2048)
CALLS = [1.0] * len(SHAPES)
TOKENS = [float(count * size) for count, size in SHAPES]
SQUARES = [float(count * size**2) for count, size in SHAPES]


@settings(deadline=None, max_examples=50)
@given(constant=st.floats(0, 0.1), linear=st.floats(1e-5, 1e-2), quadratic=st.floats(0, 1e-5))
def test_a_fit_finds_the_costs_that_made_the_measurements(constant: float, linear: float, quadratic: float) -> None:
    truth = CostModel(constant=constant, linear=linear, quadratic=quadratic)
    seconds = [
        truth.predict(calls=1, tokens=tokens, sum_squares=squares)
        for tokens, squares in zip(TOKENS, SQUARES, strict=True)
    ]
    found = fit(calls=CALLS, tokens=TOKENS, sum_squares=SQUARES, seconds=seconds)
    again = [
        found.predict(calls=1, tokens=tokens, sum_squares=squares)
        for tokens, squares in zip(TOKENS, SQUARES, strict=True)
    ]
    np.testing.assert_allclose(again, seconds, rtol=1e-7)
    assert found.linear == pytest.approx(linear, rel=1e-5)
    assert found.residual < 1e-7


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_no_other_costs_above_zero_fit_noise_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(7, 3))
    found = _nonnegative(matrix)
    assert (found >= 0).all()
    off = np.square(matrix @ found - 1).sum()
    others = np.concatenate([rng.exponential(1.0, (300, 3)), np.maximum(found + rng.normal(0, 0.05, (300, 3)), 0)])
    assert (np.square(others @ matrix.T - 1).sum(axis=1) >= off - 1e-12).all()


def test_measurements_of_one_length_cannot_tell_the_costs_apart() -> None:
    with pytest.raises(PadlessError, match="cannot tell"):
        fit(calls=[1, 1, 1], tokens=[8, 16, 32], sum_squares=[64, 128, 256], seconds=[1, 2, 3])
    with pytest.raises(PadlessError, match="at least 3"):
        fit(calls=[1, 1], tokens=[8, 16], sum_squares=[64, 256], seconds=[1, 2])


def test_a_model_with_negative_costs_is_refused() -> None:
    with pytest.raises(PadlessError, match="linear=-1"):
        CostModel(constant=0.0, linear=-1.0, quadratic=0.0)


def test_work_costs_what_its_calls_slots_and_squares_cost() -> None:
    cost = CostModel(constant=0.5, linear=0.01, quadratic=0.001, step=2.0)
    assert cost.of(padded([3, 5, 2], length=8, batch=2)) == pytest.approx(2 + 0.5 * 2 + 0.01 * 24 + 0.001 * 3 * 64)
    rows = packed([3, 5, 2], capacity=10)
    assert cost.of(rows) == pytest.approx(2 + 0.5 + 0.01 * 10 + 0.001 * (9 + 25 + 4))
    assert cost.of(rows, dense=True) == pytest.approx(2 + 0.5 + 0.01 * 10 + 0.001 * 2 * 100)


@pytest.mark.parametrize(("length", "capacity"), [(16, 16), (64, 64), (512, 2048), (4096, 4096), (100, 1000)])
def test_the_shapes_measured_can_be_fitted(length: int, capacity: int) -> None:
    made = shapes(length=length, capacity=capacity)
    assert all(count * size <= max(capacity, length) and size <= length for count, size in made)
    if length > 16:
        table = np.array([[1, count * size, count * size**2] for count, size in made], dtype=float)
        assert np.linalg.matrix_rank(table / np.linalg.norm(table, axis=0)) == 3
