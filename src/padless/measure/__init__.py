"""What packing gains on this machine: steps of padded and packed arms, the cost model, the regime, the savings curve.

Everything here takes a `Trainee`, which hides what framework the model is of.
"""

from padless.measure.calibrate import calibrate
from padless.measure.cost import CostModel, fit
from padless.measure.regime import Regime, regime
from padless.measure.savings import SavingPoint, measure_savings
from padless.measure.step import Arm, ArmResult, StepResult, arms, measure_arms
from padless.measure.timing import Timing, interleaved
from padless.measure.trainee import Trainee

__all__ = [
    "Arm",
    "ArmResult",
    "CostModel",
    "Regime",
    "SavingPoint",
    "StepResult",
    "Timing",
    "Trainee",
    "arms",
    "calibrate",
    "fit",
    "interleaved",
    "measure_arms",
    "measure_savings",
    "regime",
]
