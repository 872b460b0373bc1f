"""How evenly schedulers share a global batch out over 64 ranks, and how long they take.

    python benchmarks/scheduling.py

The same batches for everyone: Azure's chat lengths (prompt + generated, 2023) and a log-normal with a tail to 131,072
tokens. Beside ours:

- `next-fit`: Megatron-Core's `dp_balanced`, as we describe it (`megatron` in `SCHEDULERS`); no release has it yet.
- `BalancedCPScheduler`: Megatron-Core's own code for hybrid context parallelism, from the installed package. It knows
  attention alone (length ** 2), and its groups end with a barrier.
- `Karmarkar-Karp`: the largest differencing method over ranks with the same cost as ours, as verl balances batches; it
  knows neither room nor micro-batches.

"span" is the time until the last rank is done over the mean rank's work: waiting for the members of a group and at
barriers included. "work" is max / mean work of ranks. Time is CPU time of one global batch, the median over batches.
"""

import argparse
import heapq
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from padless.measure.cost import CostModel
from padless.measure.distributions import draw
from padless.measure.simulate import simulate_step
from padless.training.scheduling import Assignment, Cost, Samples, SchedulingSpec, schedule

DATA = Path(os.environ.get("PADLESS_TEST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
COST = Cost(linear=49_152, quadratic=1)  # a 7B model: 12 * 4,096 for a token, 1 for a squared one
Result = tuple[float, float]  # span, work


def ours(strategy: str, spec: SchedulingSpec) -> Callable[[np.ndarray, int], Result]:
    """One of `SCHEDULERS`, samples that wait handed on."""
    waiting = Samples.none()

    def run(lengths: np.ndarray, number: int) -> Result:
        nonlocal waiting
        ids = np.arange(len(lengths)) + number * len(lengths)
        made = schedule(lengths, spec, strategy=strategy, ids=ids, waiting=waiting)
        waiting = made.waiting
        return measured(made)

    return run


def measured(made: Assignment) -> Result:
    step = simulate_step(made, CostModel(constant=0.0, linear=COST.linear, quadratic=COST.quadratic))
    return step.seconds / float(step.busy.mean()), made.imbalance


def karmarkar_karp(lengths: np.ndarray, spec: SchedulingSpec) -> Result:
    """Largest differencing method, k ways: merge the two most uneven partitions, largest part to smallest."""
    works = spec.works(spec.padded(lengths)).tolist()
    heap = []
    for i, work in enumerate(works):
        parts = [(0, ())] * (spec.dp - 1) + [(work, (i, None))]
        heap.append((-work, i, parts))
    heapq.heapify(heap)
    while len(heap) > 1:
        _, number, a = heapq.heappop(heap)
        _, _, b = heapq.heappop(heap)
        merged = sorted(
            ((x[0] + y[0], (x[1], y[1])) for x, y in zip(a, reversed(b), strict=True)), key=lambda part: part[0]
        )
        heapq.heappush(heap, (merged[0][0] - merged[-1][0], number, merged))
    loads = np.array([load for load, _ in heap[0][2]], dtype=float)
    return (float(loads.max() / loads.mean()),) * 2


def megatrons_hybrid(lengths: np.ndarray, spec: SchedulingSpec) -> Result:
    """`BalancedCPScheduler` of the installed megatron-core over all ranks, measured with our cost."""
    from megatron.core.pipeline_parallel.hybrid_cp_schedule import BalancedCPScheduler

    class Group:
        def size(self) -> int:
            return spec.ranks

    scheduler = BalancedCPScheduler(spec.max_seqlen_per_rank, Group())  # type: ignore[arg-type]
    _, groups = scheduler.get_groups_and_subsamples(list(enumerate(lengths.tolist())), None)
    span, works = 0.0, np.zeros(spec.ranks)
    for members in groups:  # a barrier between groups
        width = np.bincount([i for mine in members for i in mine], minlength=len(lengths))
        each = np.zeros(spec.ranks)
        for rank, mine in enumerate(members):
            each[rank] = sum(COST.of([int(lengths[i])]) / width[i] for i in mine)
        span += each.max()
        works += each
    return span / works.mean(), works.max() / works.mean()


def contenders(spec: SchedulingSpec) -> dict[str, Callable[[np.ndarray, int], Result]]:
    found = {
        "padless dp-balanced": ours("dp-balanced", spec),
        "padless dynamic-cp": ours("dynamic-cp", spec),
        "padless wlb, one batch late": ours("wlb", spec),
        "Megatron next-fit (described)": ours("megatron", spec),
        "verl-style Karmarkar-Karp": lambda lengths, _: karmarkar_karp(lengths, spec),
    }
    try:
        with warnings.catch_warnings():  # about engines that a CPU has no use for
            warnings.simplefilter("ignore")
            import megatron.core
            import megatron.core.pipeline_parallel.hybrid_cp_schedule
        name = f"Megatron BalancedCPScheduler {megatron.core.__version__}"
        found[name] = lambda lengths, _: megatrons_hybrid(lengths, spec)
    except ImportError:
        print("megatron-core is not installed: its BalancedCPScheduler is left out")
    return found


def show(name: str, lengths: np.ndarray, spec: SchedulingSpec, batch: int, batches: int) -> None:
    print(
        f"\n{name}: {batches} global batches of {batch:,} samples, dp {spec.dp} x cp {spec.cp}, "
        f"{spec.max_seqlen_per_rank:,} slots a rank"
    )
    print(f"{'':<36} {'span':>7} {'worst':>7} {'work':>7} {'ms':>8}")
    for who, run in contenders(spec).items():
        results, taken = [], []
        for number in range(batches):
            began = time.process_time()
            found: Any = run(lengths[number * batch : (number + 1) * batch], number)
            taken.append(time.process_time() - began)
            results.append(found)
        span, work = np.array(results).T
        print(f"{who:<36} {span.mean():>7.3f} {span.max():>7.3f} {work.mean():>7.3f} {1e3 * np.median(taken):>8.1f}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--batches", type=int, default=8)
    batches = options.parse_args().batches
    file = DATA / "azure_llm_2023_conv_lengths.npy"
    if file.exists():
        azure = np.random.default_rng(0).permutation(np.load(file).sum(1))
        show("Azure chat", azure, SchedulingSpec(dp=64, max_seqlen_per_rank=16_384, cost=COST), 1024, batches)
    else:
        print(f"skipped: {file.name} is not in {DATA}; set PADLESS_TEST_DATA to the folder that holds it")
    tail = draw("long-tail", 10_000 * batches)
    wide = SchedulingSpec(dp=8, cp=8, max_seqlen_per_rank=16_384, cost=COST)
    show("log-normal with a tail to 128K", tail, wide, 1024, batches)
    show("the same, 10,000 samples at a time", tail, wide, 10_000, min(batches, 3))


if __name__ == "__main__":
    main()
