"""Optimizer steps of padded and packed arms on the same samples: forward, loss, backward, AdamW.

An optimizer step is the whole of the samples in every arm, cut into the arm's own micro-batches, whose gradients add
up. So all arms do the same training and have the same loss, which is checked: a way that is fast because it computes
something else would be found. Batches are made before the clock starts; the learning rate is 0, which costs the same
time and leaves the weights where they were.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from padless.errors import PadlessError, ViolationError
from padless.measure.memory import peak_memory
from padless.measure.timing import Timing, interleaved
from padless.measure.trainee import Trainee, Way
from padless.measure.workloads import Work, bucketed, dynamic, packed, padded
from padless.rows import collate
from padless.training import packed_loss

if TYPE_CHECKING:
    import torch

Progress = Callable[[str], object]
TOLERANCE = {"float64": 1e-10, "float32": 1e-4}  # relative, of the loss; rounding in other orders stays far below
HALF = 2e-2


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way of training on the samples."""

    name: str
    work: Work
    way: Way


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """What an arm took.

    Attributes:
        arm: What it did.
        timing: Of the whole optimizer step.
        peak_memory: Bytes above weights, optimizer state and batches; None where it could not be measured.
        loss: Of the step; equal in all arms.
    """

    arm: Arm
    timing: Timing
    peak_memory: int | None
    loss: float

    @property
    def real_tokens_per_second(self) -> float:
        """Tokens of samples per second; padding is not counted."""
        return self.arm.work.real_tokens / self.timing.median


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """All arms of one measurement; ratios are against the first.

    Attributes:
        arms: At least one, fixed-length padding first.
    """

    arms: tuple[ArmResult, ...]

    @property
    def padding(self) -> float:
        """Padding of the first arm, as a fraction of its slots."""
        return self.arms[0].arm.work.padding

    @property
    def ideal_ratio(self) -> float:
        """`1 / (1 - padding)`: the ratio if a step's time were in proportion to its slots.

        Attention takes more than its share in long padded rows, so that a packed run may get more than this.
        """
        return 1 / (1 - self.padding)

    def ratio(self, result: ArmResult) -> float:
        """Real tokens per second over those of the first arm."""
        return self.arms[0].timing.median / result.timing.median

    def share(self, result: ArmResult) -> float:
        """The ratio as a fraction of the ideal one."""
        return self.ratio(result) / self.ideal_ratio

    def named(self, name: str) -> ArmResult:
        """The result of an arm by name."""
        return next(result for result in self.arms if result.arm.name == name)


def arms(lengths: Any, *, length: int, batch: int, capacity: int) -> tuple[Arm, ...]:
    """The arms of `bench step`, what is usual first.

    Args:
        lengths: Tokens of each sample.
        length: What the fixed-length arm pads to.
        batch: Samples of a padded micro-batch.
        capacity: Tokens of a packed row; `batch * length` gives all arms the same room.

    Example:
        >>> for arm in arms([3, 5, 2, 8], length=8, batch=2, capacity=16):
        ...     print(arm.name, arm.work.slots)
        padded 32
        dynamic 26
        dynamic, masked 26
        bucketed 22
        dense mask 18
        padless 18
    """
    per_batch = dynamic(lengths, batch=batch)
    rows = packed(lengths, capacity=capacity)
    return (
        Arm(name="padded", work=padded(lengths, length=length, batch=batch), way="padded"),
        Arm(name="dynamic", work=per_batch, way="padded"),
        Arm(name="dynamic, masked", work=per_batch, way="masked"),
        Arm(name="bucketed", work=bucketed(lengths, batch=batch), way="padded"),
        Arm(name="dense mask", work=rows, way="dense"),
        Arm(name="padless", work=rows, way="packed"),
    )


def measure_arms(
    trainee: Trainee,
    arms: Sequence[Arm],
    samples: Sequence[np.ndarray],
    *,
    repeats: int = 3,
    memory: bool = True,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> StepResult:
    """Time the arms, taking turns.

    Args:
        trainee: The model.
        arms: What to compare; the first is what the others are rated against.
        samples: Token ids of each sample, by the numbers that the arms' work uses.
        repeats: Steps timed per arm; medians are reported.
        memory: Measure peak memory too, in one more step per arm, which also warms it up.
        progress: Told the name of an arm before each of its steps.
        clock: Seconds; on a busy machine, `time.process_time` with one thread leaves other processes out.

    Raises:
        PadlessError: When arms hold other samples.
        ViolationError: When the losses of two arms differ by more than rounding: they did not do the same work.
    """
    sizes = np.array([len(sample) for sample in samples])
    for arm in arms:
        if not np.array_equal(arm.work.lengths, sizes):
            raise PadlessError(f"the arm {arm.name!r} was made for other lengths than those of the samples given")
    optimizer = make_optimizer(trainee)
    steps = {arm.name: make_step(trainee, arm, samples, optimizer) for arm in arms}
    peaks: dict[str, int | None] = {}
    losses: dict[str, float] = {}
    for name, step in steps.items():  # memory's step is the warm-up; without it, a step warms up and counts nothing
        if progress is not None:
            progress(f"{name}, warming up")
        kept: list[float] = []
        run = _keeping(step, kept)
        peaks[name] = peak_memory(run, trainee.device) if memory else run()
        losses[name] = kept[0]
    _same_work(losses, trainee)
    timings = interleaved(steps, repeats=repeats, synchronize=trainee.synchronize, progress=progress, clock=clock)
    return StepResult(
        arms=tuple(
            ArmResult(arm=arm, timing=timings[arm.name], peak_memory=peaks[arm.name], loss=losses[arm.name])
            for arm in arms
        )
    )


def make_optimizer(trainee: Trainee) -> "torch.optim.Optimizer":
    """AdamW at a learning rate of 0, its state already there, so that no arm pays for making it."""
    import torch

    optimizer = torch.optim.AdamW(trainee.parameters, lr=0.0)
    for parameter in trainee.parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return optimizer


def make_step(
    trainee: Trainee, arm: Arm, samples: Sequence[np.ndarray], optimizer: "torch.optim.Optimizer | None"
) -> Callable[[], float]:
    """A function that does one optimizer step of an arm and returns its loss; without an optimizer, no update."""
    run = getattr(trainee, arm.way)
    batches = [
        _batch(arm.work.kind, [samples[i] for i in group], width).torch(trainee.device)
        for group, width in zip(arm.work.groups, arm.work.widths, strict=True)
    ]
    targets = sum(batch.num_targets for batch in batches)

    def step() -> float:
        total = 0.0
        for batch in batches:
            loss = packed_loss(run(batch), batch, denominator=targets)
            loss.backward()
            total += loss.detach()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        else:
            for parameter in trainee.parameters:
                parameter.grad = None
        return float(total)

    return step


def _batch(kind: str, samples: list[np.ndarray], width: int) -> Any:
    if kind == "padded":
        return collate([[sample] for sample in samples], capacity=width)
    return collate([samples])


def _keeping(step: Callable[[], float], kept: list[float]) -> Callable[[], None]:
    def run() -> None:
        kept.append(step())

    return run


def _same_work(losses: Mapping[str, float], trainee: Trainee) -> None:
    dtype = str(trainee.parameters[0].dtype).removeprefix("torch.")
    allowed = TOLERANCE.get(dtype, HALF)
    first, loss = next(iter(losses.items()))
    for name, other in losses.items():
        if not abs(other - loss) <= allowed * abs(loss):
            raise ViolationError(
                f"the arms do not do the same work: the loss of {name!r} is {other:.6f}, of {first!r} {loss:.6f}, in "
                f"{dtype} they may differ by {allowed:.0e} of it; `padless audit` says what leaks or is left out"
            )
