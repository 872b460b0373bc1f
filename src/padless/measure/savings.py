"""The savings curve: how much of a step's time goes when padding does, from 3 to 90 % padding."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from padless.measure.cost import CostModel
from padless.measure.step import Arm, Progress, measure_arms
from padless.measure.trainee import Trainee
from padless.measure.workloads import at_padding, dynamic, packed, padded

PADDINGS = (0.03, 0.1, 0.25, 0.5, 0.75, 0.9)

REPORTED = {0.03: 0.0228, 0.90: 0.8973}
"""Padding -> time saved by variable-length attention in arXiv 2603.11101 (Qwen2.5-VL, its own hardware and lengths)."""

BEYOND = 0.05  # a saving this far above the padding removed is attention's doing, and no rounding of the model


@dataclass(frozen=True, kw_only=True)
class SavingPoint:
    """One padding rate, measured.

    Attributes:
        padding: Of the fixed-length rows, exactly as it came out.
        padded: Seconds of a step of fixed-length rows.
        dynamic: Of batches padded to their longest.
        packed: Of packed rows.
        predicted: Time saved by the cost model.
    """

    padding: float
    padded: float
    dynamic: float
    packed: float
    predicted: float

    @property
    def time_saved(self) -> float:
        """By packing, of the time of fixed-length rows; 0 to 1, below 0 where packing lost."""
        return 1 - self.packed / self.padded

    @property
    def ideal_share(self) -> float:
        """The measured ratio as a fraction of `1 / (1 - padding)`."""
        return self.padded / self.packed * (1 - self.padding)

    @property
    def over_dynamic(self) -> float:
        """Packed time over dynamically padded time: above 1 packing lost."""
        return self.packed / self.dynamic


def measure_savings(
    trainee: Trainee,
    cost: CostModel,
    *,
    length: int,
    paddings: Sequence[float] = PADDINGS,
    count: int = 8,
    batch: int = 4,
    repeats: int = 3,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[SavingPoint, ...]:
    """Measure the curve: at each padding rate the same samples, padded to `length` and packed.

    Args:
        trainee: The model.
        cost: For the predictions beside the measurements.
        length: What rows are padded to.
        paddings: Rates to make samples for.
        count: Samples at each rate.
        batch: Samples of a padded micro-batch; packed rows hold `batch * length` tokens.
        repeats: Steps timed per arm and rate.
        progress: Told what runs.
        clock: As for `measure_arms`.
    """
    points = []
    rng = np.random.default_rng(0)
    for padding in paddings:
        sizes = at_padding(padding, length=length, count=count)
        fixed, rows = padded(sizes, length=length, batch=batch), packed(sizes, capacity=batch * length)
        measured = measure_arms(
            trainee,
            [
                Arm(name="padded", work=fixed, way="padded"),
                Arm(name="dynamic", work=dynamic(sizes, batch=batch), way="padded"),
                Arm(name="padless", work=rows, way="packed"),
            ],
            [rng.integers(0, trainee.vocabulary, size) for size in sizes],
            repeats=repeats,
            memory=False,
            progress=None if progress is None else _at(progress, padding),
            clock=clock,
        )
        points.append(
            SavingPoint(
                padding=fixed.padding,
                padded=measured.named("padded").timing.median,
                dynamic=measured.named("dynamic").timing.median,
                packed=measured.named("padless").timing.median,
                predicted=1 - cost.of(rows) / cost.of(fixed),
            )
        )
    return tuple(points)


def quadratic_from(cost: CostModel, *, padding: float = 0.5, beyond: float = BEYOND) -> float:
    """The row length from which packing saves more than the padding it removes, by more than `beyond`.

    From here on attention's quadratic part shows. With `n = L * (1 - padding)` for every sample,
    `saved = 1 - (linear * n + quadratic * n ** 2) / (linear * L + quadratic * L ** 2)`, solved for L.

    Returns:
        Tokens; infinite where attention costs nothing, or where the rate leaves no room above it.

    Example:
        >>> cost = CostModel(constant=0.0, linear=1.0, quadratic=1e-3)
        >>> length = quadratic_from(cost)
        >>> n = length / 2
        >>> round(1 - (n + 1e-3 * n**2) / (length + 1e-3 * length**2), 6)
        0.55
    """
    real = 1 - padding
    room = real * (1 - real)  # what the saving exceeds the padding by when attention is everything
    if not cost.quadratic or beyond >= room:
        return float("inf")
    return cost.crossover * beyond / (room - beyond)


def _at(progress: Progress, padding: float) -> Progress:
    return lambda name: progress(f"{padding:.0%} padding, {name}")
