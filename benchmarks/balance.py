"""How evenly the rows of a step are dealt to 8 ranks: random dealing, dealing by cost, and similar rows together.

    python benchmarks/balance.py

Azure's chat lengths (prompt + generated, 2023), rows of 16,384 tokens. Imbalance is max / mean over the ranks of one
step; the table gives its mean over the steps of three epochs, for attention alone (quadratic) and for a 7B model
(24,576 FLOPs-equivalents a token beside each squared length, as verl counts them). The last column says what the
window does to the order: how far the costs of one step are alike, as the share of the variance of row costs that lies
between steps (chance gives 1 / rows of a step).
"""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from padless import Plan, plan
from padless.training import Cost, RowSampler
from padless.training.balance import row_costs

DATA = Path(os.environ.get("PADLESS_TEST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
RANKS, CAPACITY, EPOCHS = 8, 16_384, 3
COSTS = {"attention alone": Cost(quadratic=1), "7B model": Cost(linear=24_576, quadratic=1)}


def at_random(p: Plan, rows: int, cost: Cost) -> float:
    """Rows in random order, dealt in order."""
    data: Any = SimpleNamespace(plan=p, fingerprint="azure")
    sampler = RowSampler(data, rows=rows, drop_last=True, ranks=RANKS, rank=0)
    return float(np.mean([sampler.imbalance(cost=cost, epoch=epoch) for epoch in range(EPOCHS)]))


def dealt(p: Plan, rows: int, cost: Cost, window: int | None) -> tuple[float, float, float]:
    """Mean and worst imbalance, and the share of variance between steps."""
    data: Any = SimpleNamespace(plan=p, fingerprint="azure")
    sampler = RowSampler(data, rows=rows, drop_last=True, ranks=RANKS, rank=0, cost=cost, window=window)
    found = np.concatenate([sampler.imbalance(epoch=epoch) for epoch in range(EPOCHS)])
    epoch_steps = sampler.epoch_steps(0)
    costs = row_costs(p.row_offsets, p.lengths, cost)
    steps = np.stack([costs[epoch_steps.step(step)] for step in range(epoch_steps.num_steps)])
    return float(found.mean()), float(found.max()), float(steps.mean(1).var() / steps.var())


def main() -> None:
    file = DATA / "azure_llm_2023_conv_lengths.npy"
    if not file.exists():
        print(f"skipped: {file.name} is not in {DATA}; set PADLESS_TEST_DATA to the folder that holds it")
        return
    lengths = np.load(file).sum(1)
    p = plan(lengths, CAPACITY)
    print(f"{len(lengths):,} samples, {p.num_rows:,} rows of {CAPACITY:,}, {RANKS} ranks")
    for name, cost in COSTS.items():
        print(f"\n{name}")
        print(f"{'rows a step':>11} {'window':>7} {'random':>7} {'dealt':>7} {'worst step':>11} {'between steps':>14}")
        for rows in (8, 16, 64):
            random = at_random(p, rows, cost)
            for window in (None, 64, 512, 1600):
                mean, worst, between = dealt(p, rows, cost, window)
                shown = "none" if window is None else window
                print(f"{rows:>11} {shown:>7} {random:>7.3f} {mean:>7.3f} {worst:>11.3f} {between:>14.2f}")


if __name__ == "__main__":
    main()
