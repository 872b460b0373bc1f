"""Measure what the cost model is fitted to: packed micro-batches of several sizes and lengths, on this machine."""

import statistics
import time
from collections.abc import Callable

import numpy as np

from padless.measure.cost import CostModel, fit
from padless.measure.step import Arm, Progress, StepResult, make_optimizer, make_step
from padless.measure.timing import interleaved
from padless.measure.trainee import Trainee
from padless.measure.workloads import packed

SHORTEST = 16
UPDATE = "optimizer"


def shapes(*, length: int, capacity: int) -> list[tuple[int, int]]:
    """`(segments, length of each)` to measure: lengths from short to the longest, in small and in whole rows.

    Example:
        >>> shapes(length=512, capacity=2048)
        [(16, 32), (64, 32), (4, 128), (16, 128), (1, 512), (4, 512)]
    """
    lengths = sorted({max(min(SHORTEST, length), length // part) for part in (16, 4, 1)})
    found = [(max(1, tokens // size), size) for size in lengths for tokens in (capacity // 4, capacity)]
    return list(dict.fromkeys(found))


def calibrate(
    trainee: Trainee,
    *,
    length: int,
    capacity: int,
    repeats: int = 3,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> CostModel:
    """Fit the cost model of this model on this machine.

    Args:
        trainee: The model.
        length: The longest sample that predictions will be asked for.
        capacity: Tokens of the largest micro-batch to measure.
        repeats: Times each shape is timed; medians are fitted.
        progress: Told what runs.
        clock: As for `measure_arms`.
    """
    rng = np.random.default_rng(0)
    works, steps = {}, {}
    for count, size in shapes(length=length, capacity=max(length, capacity)):
        samples = list(rng.integers(0, trainee.vocabulary, (count, size)))
        name = f"fitting, {count} x {size} tokens"
        works[name] = packed([size] * count, capacity=count * size)
        steps[name] = make_step(trainee, Arm(name=name, work=works[name], way="packed"), samples, None)
    update = _update(trainee)
    for warm_up in (next(iter(steps.values())), update):
        warm_up()
    timings = interleaved(
        {**steps, UPDATE: update}, repeats=repeats, synchronize=trainee.synchronize, progress=progress, clock=clock
    )
    return fit(
        calls=[work.calls for work in works.values()],
        tokens=[work.slots for work in works.values()],
        sum_squares=[work.sum_squares for work in works.values()],
        seconds=[timings[name].median for name in works],
        step=timings[UPDATE].median,
    )


def predict(cost: CostModel, arm: Arm) -> float:
    """Seconds that the cost model expects of an arm's step."""
    return cost.of(arm.work, dense=arm.way in ("dense", "masked"))


def median_error(cost: CostModel, step: StepResult) -> float:
    """Median over arms of |predicted / measured - 1|; none of them was fitted to."""
    return statistics.median(abs(predict(cost, each.arm) / each.timing.median - 1) for each in step.arms)


def _update(trainee: Trainee) -> Callable[[], None]:
    """One optimizer step on gradients of zero, which take as long as others."""
    import torch

    optimizer = make_optimizer(trainee)
    gradients = [torch.zeros_like(parameter) for parameter in trainee.parameters]

    def run() -> None:
        for parameter, gradient in zip(trainee.parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run
