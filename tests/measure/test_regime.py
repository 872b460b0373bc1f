"""Regime and savings, by arithmetic: the two regimes of the published report, and a curve that only rises."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.measure import CostModel, regime
from padless.measure.savings import PADDINGS, SavingPoint, quadratic_from
from padless.measure.workloads import at_padding, packed, padded

PROJECTIONS = CostModel(constant=0.0, linear=1.0, quadratic=1e-6)
ATTENTION = CostModel(constant=0.0, linear=1.0, quadratic=1.0)
BATCHES = {"length": 4096, "batch": 4, "capacity": 4096}


def saved(cost: CostModel, lengths: np.ndarray) -> float:
    return 1 - cost.of(packed(lengths, capacity=4096)) / cost.of(padded(lengths, length=4096, batch=4))


@pytest.mark.parametrize(("padding", "reported"), [(0.03, 0.0228), (0.90, 0.8973)])
def test_bound_by_projections_the_saving_is_the_padding(padding: float, reported: float) -> None:
    lengths = at_padding(padding, length=4096, count=64)
    found = regime(PROJECTIONS, lengths, **BATCHES)
    assert found.name == "projections"
    assert found.packing == pytest.approx(padding, abs=0.01)
    assert found.packing == pytest.approx(reported, abs=0.01)
    assert found.pruning == pytest.approx(0.25, abs=0.01)
    assert "about what it removes" in found.advice()[-1]


def test_bound_by_attention_the_saving_exceeds_the_padding() -> None:
    lengths = at_padding(0.9, length=4096, count=64)
    found = regime(ATTENTION, lengths, **BATCHES)
    assert found.name == "attention"
    assert found.packing > 0.98
    assert found.pruning == pytest.approx(1 - 0.75**2, abs=0.01)  # 43.75 %
    assert "more than it removes" in found.advice()[-1]


@pytest.mark.parametrize("cost", [PROJECTIONS, ATTENTION, CostModel(constant=0.01, linear=1.0, quadratic=1e-3)])
def test_the_predicted_curve_rises_with_the_padding(cost: CostModel) -> None:
    curve = [saved(cost, at_padding(padding, length=4096, count=64)) for padding in PADDINGS]
    assert curve == sorted(curve)
    assert all(each >= padding - 0.01 for each, padding in zip(curve, PADDINGS, strict=True))


def test_advice_names_the_largest_lever_first_and_says_when_one_loses() -> None:
    found = regime(
        CostModel(constant=0.0, linear=1.0, quadratic=1e-3), [100, 900, 300, 700], length=1000, batch=2, capacity=1000
    )
    assert found.advice()[0].startswith("packing takes")
    assert found.attention_real == pytest.approx(0.4118, abs=1e-4)
    assert found.name == "projections"  # until attention takes half
    assert found.packing > found.bucketing > found.batching > 0
    calls = CostModel(constant=1e6, linear=1.0, quadratic=0.0)  # so dear that more, smaller rows lose
    lost = regime(calls, [600] * 4, length=600, batch=4, capacity=600)
    assert lost.packing < 0
    assert any("packing takes" in line and "more time" in line for line in lost.advice())


@settings(deadline=None, max_examples=50)
@given(quadratic=st.floats(1e-6, 1e-2), padding=st.floats(0.1, 0.9))
def test_the_quadratic_regime_begins_where_the_formula_says(quadratic: float, padding: float) -> None:
    cost = CostModel(constant=0.0, linear=1.0, quadratic=quadratic)
    length = quadratic_from(cost, padding=padding)
    short = length * (1 - padding)
    exact = 1 - (short + quadratic * short**2) / (length + quadratic * length**2)
    assert exact == pytest.approx(padding + 0.05, rel=1e-9)
    assert quadratic_from(CostModel(constant=0.0, linear=1.0, quadratic=0.0)) == float("inf")


def test_a_point_of_the_curve_rates_itself() -> None:
    point = SavingPoint(padding=0.75, padded=8.0, dynamic=2.0, packed=1.6, predicted=0.7)
    assert (point.time_saved, point.ideal_share, point.over_dynamic) == pytest.approx((0.8, 1.25, 0.8))
