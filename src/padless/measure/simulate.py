"""A cluster on paper: how long its steps take under a schedule, who waits, and what memory a rank needs.

Attention and the rest of the model cost what the cost model says; communication costs nothing. So what is compared is
how well work is shared out, which is what a schedule decides.
"""

import dataclasses
import time
from typing import Any

import numpy as np

from padless.errors import PadlessError
from padless.measure.cost import CostModel
from padless.training.scheduling import Assignment, Samples, SchedulingSpec, check_assignment, schedule

ACTIVATIONS = 34
"""Bytes of activations of one slot, per layer and unit of width, in half precision with flash attention
(Korthikanti et al., arXiv 2205.05198, the term that is linear in the length)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What a decoder's step costs, from its shape.

    Args:
        layers: Decoder layers.
        hidden: Width.
        parameters: In units of one.

    Example:
        >>> cost = SHAPES["7b"].cost(tflops=400)
        >>> round(cost.crossover)  # tokens from which attention costs more than everything else
        51117
    """

    layers: int
    hidden: int
    parameters: float

    def cost(self, *, tflops: float, tensor_parallel: int = 1) -> CostModel:
        """Seconds of forward and backward passes where every rank sustains so many TFLOP/s.

        6 FLOPs for each parameter and token; 6 for each layer, unit of width and squared token (causal, so half of
        the pairs).
        """
        rate = tflops * 1e12 * tensor_parallel
        return CostModel(
            constant=0.0, linear=6 * self.parameters / rate, quadratic=6 * self.layers * self.hidden / rate
        )

    def bytes_per_slot(self, *, tensor_parallel: int = 1) -> float:
        """Activations of one slot through all layers, on one tensor-parallel rank."""
        return ACTIVATIONS * self.layers * self.hidden / tensor_parallel


SHAPES = {
    "1b": ModelShape(layers=16, hidden=2048, parameters=1.2e9),
    "7b": ModelShape(layers=32, hidden=4096, parameters=6.7e9),
    "13b": ModelShape(layers=40, hidden=5120, parameters=13e9),
    "70b": ModelShape(layers=80, hidden=8192, parameters=70e9),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One simulated step.

    Attributes:
        seconds: Until the last rank is done, the optimizer step included, when ranks meet once a step.
        lockstep: The same when all ranks meet after every micro-batch, as sharded weights and experts make them.
        busy: float64[ranks], seconds that each rank computes in each of its stages.
        tokens: Real tokens trained on.
        peak_slots: Slots whose activations the fullest rank holds at one time, in units of all layers.
    """

    seconds: float
    lockstep: float
    busy: np.ndarray
    tokens: int
    peak_slots: float

    @property
    def idle(self) -> float:
        """Share of all ranks' time in which they wait, 0 to 1."""
        return 1 - float(self.busy.sum()) / (len(self.busy) * self.seconds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Simulation:
    """Means over the steps of one schedule.

    Attributes:
        strategy: Its name.
        steps: Steps simulated.
        step_seconds: Mean time of a step.
        worst_seconds: Of the longest.
        lockstep_seconds: Mean time of a step in which all ranks meet after every micro-batch.
        tokens_per_second: Real tokens over all ranks.
        imbalance: Mean over steps of max / mean work of ranks.
        worst_imbalance: Of the most uneven step.
        microbatch_imbalance: Mean over steps of max / mean work of micro-batches, WLB-LLM's measure.
        idle: Share of all ranks' time that is waiting.
        peak_bytes: Activations of the fullest rank at any time.
        peak_slots: The same in slots through all layers.
        microbatches: Mean number per rank, of the rank that has most.
        empty: Places without a sample where ranks run in step, all steps together.
        padding: Share of slots that alignment added.
        waiting: Mean number of samples that wait for a later step.
        waited: Mean global batches by which a token came late.
        schedule_seconds: Mean time that scheduling took here.
    """

    strategy: str
    steps: int
    step_seconds: float
    worst_seconds: float
    lockstep_seconds: float
    tokens_per_second: float
    imbalance: float
    worst_imbalance: float
    microbatch_imbalance: float
    idle: float
    peak_bytes: float
    peak_slots: float
    microbatches: float
    empty: int
    padding: float
    waiting: float
    waited: float
    schedule_seconds: float


def simulate_step(made: Assignment, cost: CostModel) -> Step:
    """Run one assignment through a cluster.

    A rank runs its micro-batches in order; a context-parallel group begins when all its members are free. A pipeline
    of p stages takes the sum of its micro-batches' stage times and p - 1 times the longest: every micro-batch takes
    each stage equally long, and no stage lets one overtake another.

    Args:
        made: Who runs what.
        cost: Seconds of a micro-batch; context parallelism divides them by its ranks, `pp` by its stages.

    Example:
        >>> from padless.training.scheduling import Cost, schedule
        >>> spec = SchedulingSpec(dp=2, max_seqlen_per_rank=8, cost=Cost(linear=1))
        >>> step = simulate_step(schedule([8, 6], spec), CostModel(constant=0.0, linear=0.5, quadratic=0.0))
        >>> step.seconds, step.idle, step.peak_slots
        (4.0, 0.125, 8.0)
    """
    spec = made.spec
    times = (cost.constant + cost.linear * made.bin_slots + cost.quadratic * made.bin_squares) / spec.pp
    clock, longest = np.zeros(spec.ranks), np.zeros(spec.ranks)
    held = np.zeros((spec.ranks, spec.pp))  # slots of the largest micro-batches of a rank, as many as stages
    bins = zip(made.first_rank.tolist(), made.width.tolist(), times.tolist(), made.bin_slots.tolist(), strict=True)
    for first, width, seconds, slots in bins:
        ranks = slice(first, first + width)
        clock[ranks] = clock[ranks].max() + seconds
        longest[ranks] = np.maximum(longest[ranks], seconds)
        _keep_largest(held[ranks], slots)
    done = clock + (spec.pp - 1) * longest
    together = np.zeros(made.num_microbatches)
    np.maximum.at(together, made.microbatch, times)
    return Step(
        seconds=float(done.max()) + cost.step,
        lockstep=float(together.sum() + (spec.pp - 1) * together.max()) + cost.step,
        busy=made.over_ranks(times),
        tokens=int(made.samples.lengths.sum()),
        peak_slots=float(held.sum(1).max()) / spec.pp,
    )


def _keep_largest(held: np.ndarray, slots: int) -> None:
    """One more micro-batch in flight: it takes the place of each rank's smallest, where it is larger."""
    smallest = held.argmin(1)
    rows = np.arange(len(held))
    held[rows, smallest] = np.maximum(held[rows, smallest], slots)


def simulate(
    lengths: Any,
    spec: SchedulingSpec,
    strategy: str,
    *,
    global_batch: int,
    cost: CostModel,
    bytes_per_slot: float = 0.0,
) -> Simulation:
    """Schedule consecutive global batches and run each through the cluster; every schedule is checked.

    Args:
        lengths: int[N]; the first `N // global_batch` global batches are simulated.
        spec: The cluster. Its own cost decides who gets what, `cost` how long it takes.
        strategy: A name of `SCHEDULERS`.
        global_batch: Samples that arrive for each step.
        cost: Seconds of forward and backward passes on one rank.
        bytes_per_slot: Activations of a slot through all layers.

    Raises:
        PadlessError: When there is not one whole global batch, or it cannot be scheduled.

    Example:
        >>> from padless.training.scheduling import Cost
        >>> spec = SchedulingSpec(dp=2, max_seqlen_per_rank=8, cost=Cost(linear=1))
        >>> cost = CostModel(constant=0.0, linear=0.5, quadratic=0.0)
        >>> made = simulate([8, 6, 7, 7], spec, "dp-balanced", global_batch=2, cost=cost)
        >>> made.steps, made.step_seconds, round(made.imbalance, 3), round(made.idle, 3)
        (2, 3.75, 1.071, 0.067)
    """
    count = len(lengths) // global_batch
    if count < 1:
        raise PadlessError(f"{len(lengths):,} lengths make no global batch of {global_batch:,} samples")
    waiting, made, steps, took = Samples.none(), [], [], 0.0
    for number in range(count):
        ids = np.arange(number * global_batch, (number + 1) * global_batch)
        began = time.perf_counter()
        found = schedule(np.asarray(lengths)[ids], spec, strategy=strategy, ids=ids, waiting=waiting)
        took += time.perf_counter() - began
        check_assignment(found, waiting.plus(Samples.of(np.asarray(lengths)[ids], ids)))
        waiting = found.waiting
        made.append(found)
        steps.append(simulate_step(found, cost))
    seconds = np.array([step.seconds for step in steps])
    tokens = sum(step.tokens for step in steps)
    slots = sum(int(a.slots.sum()) for a in made)
    late = sum(int((a.samples.ages * a.samples.lengths).sum()) for a in made)
    peak = max(step.peak_slots for step in steps)
    return Simulation(
        strategy=strategy,
        steps=count,
        step_seconds=float(seconds.mean()),
        worst_seconds=float(seconds.max()),
        lockstep_seconds=float(np.mean([step.lockstep for step in steps])),
        tokens_per_second=tokens / float(seconds.sum()),
        imbalance=float(np.mean([a.imbalance for a in made])),
        worst_imbalance=max(a.imbalance for a in made),
        microbatch_imbalance=float(np.mean([a.microbatch_imbalance for a in made])),
        idle=1 - sum(float(step.busy.sum()) for step in steps) / (spec.ranks * float(seconds.sum())),
        peak_bytes=peak * bytes_per_slot,
        peak_slots=peak,
        microbatches=float(np.mean([a.num_microbatches for a in made])),
        empty=sum(a.num_empty for a in made) if strategy != "dynamic-cp" or spec.in_step else 0,
        padding=1 - tokens / slots,
        waiting=float(np.mean([len(a.waiting) for a in made])),
        waited=late / tokens,
        schedule_seconds=took / count,
    )
