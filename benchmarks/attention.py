"""Packed attention against the dense mask, the padded batch and equal batches; and time saved against padding.

    python benchmarks/attention.py [--threads 1 2] [--repeats 3] [--tokens 8192] [--cpu-time] [--svg savings.svg]

Forward and backward of 8 heads of 64, the ways taking turns, medians. "equal batch" is as many tokens in segments of
one length, which is what the kernel itself can do. The curve is a projection to q, k and v, attention and a projection
back, on 8 sequences of 1,024 slots at a given share of padding; the reported end points are those of arXiv 2603.11101.
`--cpu-time` counts this process's seconds only, for one thread on a busy machine.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from padless.attention import Segments, varlen_attention
from padless.measure import attention
from padless.measure.savings import REPORTED
from padless.measure.timing import interleaved
from padless.report.charts import savings_chart
from padless.report.given import Bench, Saving

AIMS = {1: {"about 16": 80, "about 128": 40, "log-normal": 25, "about 1024": 10}}
AIMS[2] = {"about 16": 55, "about 128": 28, "log-normal": 22, "about 1024": 9}
HEADS, SIZE = 8, 64
Clock = Callable[[], float]


def table(threads: int, tokens: int, repeats: int, clock: Clock) -> None:
    print(f"\n{threads} thread(s), float32, {tokens:,} tokens: ms, and how many times as long as padless")
    print(f"{'segments':12}{'padless':>10}{'padded batch':>20}{'equal batch':>20}{'dense mask':>20}{'aim':>6}")
    with attention.threads(threads):
        for r in attention.measure(tokens=tokens, repeats=repeats, device="cpu", clock=clock):
            _, _, mine, *others = r.row()
            cells = "".join(f"{other:>20}" for other in others)
            print(f"{r.case:12}{mine:>10}{cells}{AIMS.get(threads, {}).get(r.case, ''):>6}", flush=True)


def half_precision(threads: int, tokens: int, repeats: int, clock: Clock) -> None:
    print(f"\n{threads} thread(s), bfloat16 over float32 time of padless (aim: at most 1 for short segments)")
    with attention.threads(threads):
        for case in attention.CASES:
            segments = Segments.of(np.concatenate([[0], np.cumsum(attention.lengths_of(case, tokens))]))
            ways = {
                str(dtype): partial(step, varlen_attention, [tensor(tokens, dtype) for _ in range(4)], segments)
                for dtype in (torch.float32, torch.bfloat16)
            }
            wide, half = (timing.median for timing in timed(ways, repeats, clock))
            print(f"{case:12}{half / wide:8.2f}", flush=True)


def curve(threads: int, repeats: int, clock: Clock, sequences: int = 8, length: int = 1024) -> list[Saving]:
    print(f"\n{threads} thread(s): time saved against fixed length, attention and projections")
    print(f"{'padding':>8}{'saved':>9}{'reported':>10}")
    width = HEADS * SIZE
    into, back = torch.nn.Linear(width, 3 * width, bias=False), torch.nn.Linear(width, width, bias=False)

    def layer(x: torch.Tensor, attend: Callable[..., torch.Tensor]) -> None:
        q, k, v = into(x).unflatten(-1, (3, HEADS, SIZE)).unbind(-3)
        back(attend(q, k, v).flatten(-2)).sum().backward()

    def fixed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)

    rng = np.random.default_rng(0)
    points = []
    with attention.threads(threads):
        for padding in (0.03, 0.1, 0.25, 0.5, 0.75, 0.9):
            mean = length * (1 - padding)
            spread = min(mean, length - mean) * 0.5
            lengths = np.clip(rng.uniform(mean - spread, mean + spread, sequences).round(), 1, length).astype(int)
            segments = Segments.of(np.concatenate([[0], np.cumsum(lengths)]))
            rectangle, row = torch.randn(sequences, length, width), torch.randn(segments.q_slots, width)
            packed = partial(varlen_attention, batch=segments)
            ways = {"fixed": partial(layer, rectangle, fixed), "packed": partial(layer, row, packed)}
            slow, fast = (timing.median for timing in timed(ways, repeats, clock))
            real = 1 - lengths.sum() / (sequences * length)
            reported = "" if padding not in REPORTED else f"{REPORTED[padding]:.2%}"
            print(f"{real:8.1%}{1 - fast / slow:9.1%}{reported:>10}", flush=True)
            points.append(Saving(padding=float(real), time_saved=1 - fast / slow))
    return points


def timed(ways: dict[str, Callable[[], object]], repeats: int, clock: Clock) -> list:
    for way in ways.values():
        way()
    return list(interleaved(ways, repeats=repeats, clock=clock).values())


def tensor(tokens: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(tokens, HEADS, SIZE, dtype=dtype, requires_grad=True)


def step(attend: Callable[..., torch.Tensor], tensors: list[torch.Tensor], segments: Segments) -> None:
    q, k, v, up = tensors
    torch.autograd.grad(attend(q, k, v, segments), (q, k, v), up.detach())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--svg", type=Path, help="where to draw the savings curve")
    chosen = parser.parse_args()
    seconds = time.process_time if chosen.cpu_time else time.perf_counter
    for count in chosen.threads:
        table(count, chosen.tokens, chosen.repeats, seconds)
        half_precision(count, chosen.tokens, chosen.repeats, seconds)
    savings = curve(chosen.threads[-1], chosen.repeats, seconds)
    if chosen.svg is not None:
        chosen.svg.write_text(savings_chart(Bench(savings=tuple(savings))).standalone())
