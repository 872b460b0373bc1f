"""Packed attention against what it replaces, and the fit of the cost model that chooses between backends."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from padless.attention import Segments, cost, varlen_attention
from padless.attention.backends import BACKENDS
from padless.attention.problem import Problem
from padless.attention.select import why_not
from padless.measure.timing import interleaved

HEADER = ("segments", "number", "padless", "padded batch", "equal batch", "dense mask")
CASES = ("about 16", "about 128", "log-normal", "about 1024")
Progress = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Result:
    """One mixture of segments.

    Attributes:
        case: Of what lengths.
        segments: How many.
        padless: Milliseconds of `varlen_attention`, forward and backward.
        padded: Of the same samples as a batch padded to the longest.
        equal: Of as many tokens in segments of one length, the mean; None for the mixture.
        dense: Of SDPA with the block mask over the row.
    """

    case: str
    segments: int
    padless: float
    padded: float
    equal: float | None
    dense: float

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self)

    def row(self) -> tuple[str, ...]:
        """For a table: each time with its ratio to padless."""
        others = [
            "" if ms is None else f"{ms:.1f} ({ms / self.padless:.2f}x)" for ms in (self.padded, self.equal, self.dense)
        ]
        return (self.case, str(self.segments), f"{self.padless:.1f}", *others)


def lengths_of(case: str, tokens: int, seed: int = 0) -> list[int]:
    """Lengths that add up to `tokens`: around a mean (20 % to each side), or log-normal with many short ones.

    The log-normal lengths are quantiles of one distribution (median 81, mean 134) in random order, so that the longest
    does not hang on a single draw: 60 segments up to 895 in 8,192 tokens.

    Example:
        >>> lengths = lengths_of("about 16", 640)
        >>> sum(lengths), 30 < len(lengths) < 50
        (640, True)
    """
    rng = np.random.default_rng(seed)
    found: list[int] = []
    if case == "log-normal":
        normal, count = NormalDist(4.4, 1.0), 1
        while sum(found) < tokens:
            count += 1
            found = [int(math.exp(normal.inv_cdf((i + 0.5) / count))) for i in range(count)]
        ends = np.minimum(np.cumsum(rng.permutation(found)), tokens)
        return [int(n) for n in np.diff(ends, prepend=0) if n]
    mean = float(case.rsplit(maxsplit=1)[-1])
    while sum(found) < tokens:
        found.append(int(min(max(1.0, mean * rng.uniform(0.8, 1.2)), tokens - sum(found))))
    return found


def measure(
    *,
    tokens: int = 8192,
    heads: int = 8,
    size: int = 64,
    dtype: str = "float32",
    repeats: int = 5,
    cases: tuple[str, ...] = CASES,
    device: str | None = None,
    clock: Callable[[], float] = time.perf_counter,
    progress: Progress | None = None,
) -> list[Result]:
    """Time every mixture in every way, the ways taking turns; medians.

    Args:
        tokens: Of the row.
        heads: Query heads, and as many key heads.
        size: Of a head.
        dtype: Name of a torch dtype.
        repeats: Times each way is timed.
        cases: Of `CASES`.
        device: Where; a GPU when there is one.
        clock: Seconds; `time.process_time` on one thread leaves out what other processes took.
        progress: Told what runs.
    """
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    make = partial(_tensors, heads=heads, size=size, dtype=getattr(torch, dtype), device=where)
    results = []
    for case in cases:
        lengths = lengths_of(case, tokens)
        ways = _ways(lengths, tokens, case, make)
        for way in ways.values():
            way()
        told = None if progress is None else _told(progress, case)
        wait = torch.cuda.synchronize if where == "cuda" else None
        timed = interleaved(ways, repeats=repeats, synchronize=wait, progress=told, clock=clock)
        ms = {name: timing.median * 1e3 for name, timing in timed.items()}
        results.append(Result(case=case, segments=len(lengths), equal=ms.pop("equal", None), **ms))
    return results


def _ways(lengths: list[int], tokens: int, case: str, make: Callable[[int], list[torch.Tensor]]) -> dict[str, Any]:
    segments = Segments.of(np.concatenate([[0], np.cumsum(lengths)]))
    row = make(tokens)
    ways = {
        "padless": lambda: _step(varlen_attention, row, segments),
        "dense": lambda: _step(partial(varlen_attention, backend="dense"), row, segments),
    }
    n, longest = len(lengths), max(lengths)
    batch = [x.unflatten(0, (n, longest)).transpose(1, 2).detach().requires_grad_() for x in make(n * longest)]
    ways["padded"] = lambda: _step(partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True), batch)
    if case != "log-normal":
        length = int(case.rsplit(maxsplit=1)[-1])
        equal = Segments.of(range(0, tokens + 1, length))
        even = make(equal.q_slots)
        ways["equal"] = lambda: _step(varlen_attention, even, equal)
    return ways


def _tensors(tokens: int, *, heads: int, size: int, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """q, k, v and the gradient of the output."""
    return [torch.randn(tokens, heads, size, dtype=dtype, device=device).requires_grad_(i < 3) for i in range(4)]


def _step(attend: Callable[..., Any], tensors: list[torch.Tensor], *segments: Segments) -> None:
    """Forward and backward; gradients are dropped, not added up."""
    q, k, v, up = tensors
    torch.autograd.grad(attend(q, k, v, *segments), (q, k, v), up.detach())


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Run with `count` CPU threads, and with as many as before afterwards; None changes nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def calibrate(
    *, heads: int = 8, size: int = 64, repeats: int = 5, device: str | None = None, progress: Progress | None = None
) -> tuple[dict[str, cost.Cost], Path]:
    """Fit the cost of every backend that can run here, save it where `backend="auto"` looks, and say where.

    Lengths of one size each give the costs of a token and a pair, a ragged row beside an equal one those of a call.
    """
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if where == "cuda" else torch.float32
    make = partial(_tensors, heads=heads, size=size, dtype=dtype, device=where)
    wait = torch.cuda.synchronize if where == "cuda" else None
    q, k, v, _ = make(4)
    probe = Problem(q=q, k=k, v=v, segments=Segments.of([0, 4]), right=0, scale=1.0)
    found = {}
    for name, backend in BACKENDS.items():
        if name == "reference" or why_not(backend, probe):
            continue
        if progress is not None:
            progress(f"timing {name}")
        known = cost.machine(where)[name]
        found[name] = _fit(name, known, make, heads * size / 64, repeats, wait)
    path = cost.path()
    cost.save(where, found, path)
    return found, path


def _fit(name: str, known: cost.Cost, make: Any, heads: float, repeats: int, wait: Any) -> cost.Cost:
    """Equal segments first, then what raggedness adds."""
    tokens = 2048
    shapes = [(64, 64), *((tokens, length) for length in (16, 64, 256, 1024, 2048))]
    rows = [(Segments.of(range(0, total + 1, length)), make(total)) for total, length in shapes]
    ragged = Segments.of(np.concatenate([[0], np.cumsum([127, 129] * (tokens // 256))]))
    tiny = Segments.of(np.concatenate([[0], np.cumsum([15, 17] * (tokens // 32))]))
    rows += [(ragged, make(tokens)), (tiny, make(tokens)), (Segments.of(range(0, tokens + 1, 128)), make(tokens))]
    ways = {str(i): partial(_step, partial(varlen_attention, backend=name), x, s) for i, (s, x) in enumerate(rows)}
    for way in ways.values():
        way()
    us = [timing.median * 1e6 for timing in interleaved(ways, repeats=repeats, synchronize=wait).values()]
    pairs = [total * (total if name == "dense" else length) for total, length in shapes]
    costs = np.array([[1.0, heads * total, heads * n] for (total, _), n in zip(shapes, pairs, strict=True)])
    launch, token, pair = _non_negative(costs / np.array(us[: len(shapes)])[:, None])
    if name != "segmented":
        return dataclasses.replace(known, launch_us=launch, token_us=token, pair_us=pair)
    per_call = max(launch, (us[-3] - us[-1]) / (len(ragged) - 1))
    gather = max(0.0, us[-2] - us[1] - 2 * per_call) / (heads * tokens)
    return cost.Cost(launch_us=per_call, token_us=token, pair_us=pair, gather_us=gather)


def _non_negative(rows: np.ndarray) -> tuple[float, float, float]:
    """Numbers x with `rows @ x` nearest to 1, none negative: columns that would be are left out, one by one."""
    columns = list(range(rows.shape[1]))
    while True:
        fitted, *_ = np.linalg.lstsq(rows[:, columns], np.ones(len(rows)), rcond=None)
        if (fitted >= 0).all() or len(columns) == 1:
            break
        columns.pop(int(np.argmin(fitted)))
    found = np.zeros(rows.shape[1])
    found[columns] = np.maximum(fitted, 0.0)
    launch, token, pair = found.tolist()
    return launch, token, pair


def _told(progress: Progress, case: str) -> Progress:
    return lambda name: progress(f"segments of {case} tokens, {name}")
