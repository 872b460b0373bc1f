"""What it costs to compile the rule of one long batch: `python benchmarks/masks.py`.

One batch of 131,072 slots with lognormal document lengths, aligned to 16. It is compiled once per batch, not per layer.
Time is the best of five, in milliseconds; `calls` is how many varlen calls the rule takes.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from padless.masks import flash_mask, flex_block_mask, magi_slices, varlen_calls
from padless.rows import Batch, Rule, batch_from_segments

SLOTS = 131_072


def lengths() -> np.ndarray:
    drawn = np.clip(np.random.default_rng(0).lognormal(5.5, 1, 2_000), 8, 8_000).astype(int)
    return drawn[np.cumsum(-(-drawn // 16) * 16) <= SLOTS]


def batches(n: np.ndarray) -> dict[str, Batch]:
    """Causal, prefix-LM with half of each document as its prefix, and pi0's three blocks."""
    tokens = np.zeros(int(n.sum()), dtype=np.int64)
    blocks = np.concatenate([np.repeat([0, 1, 2], [k - 6, 1, 5]) for k in n])
    made = {"causal": {}, "prefix-lm": {"prefix_lengths": n // 2}, "block-causal": {"blocks": blocks}}
    return {
        kind: batch_from_segments(tokens, None, n, rule=Rule(kind=kind), align=16, capacity=SLOTS, **extra)  # pyright: ignore[reportArgumentType]
        for kind, extra in made.items()
    }


def best(compile_rule: Callable[[Batch], Any], batch: Batch) -> float:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        compile_rule(batch)
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def main() -> None:
    n = lengths()
    print(f"{len(n)} documents, {int(n.sum()):,} tokens in {SLOTS:,} slots")
    print(f"{'rule':14}{'varlen_calls':>14}{'magi_slices':>14}{'flash_mask':>14}{'flex_block_mask':>17}{'calls':>8}")
    for kind, batch in batches(n).items():
        times = "".join(f"{best(f, batch):14.2f}" for f in (varlen_calls, magi_slices, flash_mask, flex_block_mask))
        print(f"{kind:14}{times}   {len(varlen_calls(batch)):8}")


if __name__ == "__main__":
    main()
