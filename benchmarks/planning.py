"""Planning, sample ids included, against other packers, in one process on one machine.

    python benchmarks/planning.py [millions of samples]

Chat-like lengths (lognormal, median 400, at most 4,096) in rows of 4,096. Medians of five rounds that alternate, so
that other work on the machine meets every packer alike; TRL's packer, a minute for ten million, runs once.
LightBinPack is C++ (pip install lightbinpack); without it the table says so. The segment tree is the best fit
decreasing of Ding et al. 2024, compiled with numba. Memory is the peak of a process of its own while it plans, less
what it held before.
"""

import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from padless.lengths import LengthHistogram
from padless.planning import outline, plan

CAPACITY = 4096
ROUNDS = 5


def main() -> None:
    samples = int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 10_000_000
    lengths = chat_like(samples)
    packers: dict[str, Callable[[], int] | None] = {
        "padless best-fit-decreasing": lambda: plan(lengths, CAPACITY).num_rows,
        "LightBinPack obfd (C++)": lightbinpack(lengths),
        "segment tree, numba": segment_tree(lengths),
    }
    times: dict[str, list[float]] = {name: [] for name in packers}
    rows: dict[str, int] = {}
    for name, pack in packers.items():
        if pack is not None:
            rows[name] = pack()  # compiles, and warms caches
    for _ in range(ROUNDS):
        for name, pack in packers.items():
            if pack is not None:
                times[name].append(timed(pack))
    fast = statistics.median(times["padless best-fit-decreasing"])
    table = Table("packer", "seconds", "times padless", "rows", title=f"{samples:,} samples, rows of {CAPACITY:,}")
    for name, pack in packers.items():
        if pack is None:
            table.add_row(name, "not installed", "", "")
        else:
            seconds = statistics.median(times[name])
            table.add_row(name, f"{seconds:.3f}", f"{seconds / fast:.1f}", f"{rows[name]:,}")
    seconds, found = trl(lengths)
    table.add_row("TRL bfd", f"{seconds:.3f}", f"{seconds / fast:.1f}", f"{found:,}")
    Console().print(table)
    print(f"peak memory of planning: {peak_memory(samples):.1f} bytes per sample")
    ten_billion()


def chat_like(samples: int) -> np.ndarray:
    drawn = np.random.default_rng(0).lognormal(np.log(400), 1.0, samples)
    return np.clip(drawn, 1, CAPACITY).astype(np.int32)


def timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def lightbinpack(lengths: np.ndarray) -> Callable[[], int] | None:
    try:
        from lightbinpack import obfd
    except ImportError:
        return None
    as_list = lengths.tolist()  # what it takes; made before the clock starts
    return lambda: len(obfd(as_list, CAPACITY))


def segment_tree(lengths: np.ndarray) -> Callable[[], int] | None:
    try:
        import numba
    except ImportError:
        return None
    kernel = numba.njit(_segment_tree)

    def pack() -> int:
        order = np.argsort(-lengths, kind="stable")
        row_of, rows = kernel(lengths, order, CAPACITY)
        np.argsort(row_of[:, 0], kind="stable")  # the ids, row by row
        return rows

    return pack


def _segment_tree(lengths, order, capacity):
    leaves = 1
    while leaves < capacity + 1:
        leaves *= 2
    tree = np.zeros(2 * leaves, np.int32)
    head = np.full(capacity + 1, -1, np.int32)  # the row last put at each free space
    below = np.empty(lengths.size, np.int32)
    row_of = np.empty((lengths.size, 1), np.int32)
    rows = 0
    for sample in order:
        size = lengths[sample]
        space = capacity
        if tree[1] >= size:
            node = 1
            while node < leaves:
                node *= 2
                if tree[node] < size:
                    node += 1
            space = node - leaves
            row = head[space]
            head[space] = below[row]
            if head[space] < 0:
                node = space + leaves
                tree[node] = 0
                node //= 2
                while node:
                    tree[node] = max(tree[2 * node], tree[2 * node + 1])
                    node //= 2
        else:
            row = rows
            rows += 1
        left = space - size
        row_of[sample, 0] = row
        if left > 0:
            if head[left] < 0:
                node = left + leaves
                tree[node] = left
                node //= 2
                while node:
                    tree[node] = max(tree[2 * node], tree[2 * node + 1])
                    node //= 2
            below[row] = head[left]
            head[left] = row
    return row_of, rows


def trl(lengths: np.ndarray) -> tuple[float, int]:
    """TRL's own class, driven as its `_pack_bfd` drives it, without the copying of tokens."""
    from collections import deque

    from trl.data_utils import _SegmentTree

    began = time.perf_counter()
    tree, at, rows = _SegmentTree(CAPACITY), {}, []
    tree.add(CAPACITY)
    at[CAPACITY] = deque()
    for sample in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[sample])
        space = tree.search(size)
        if space < CAPACITY:
            row = at[space].popleft()
        else:
            row = []
            rows.append(row)
        row.append(sample)
        if space < CAPACITY and not at[space]:
            tree.remove(space)
        left = space - size
        if left > 0:
            waiting = at.setdefault(left, deque())
            waiting.append(row)
            tree.add(left)
    return time.perf_counter() - began, len(rows)


def peak_memory(samples: int) -> float:
    """Bytes per sample that planning adds to a process that holds the lengths."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_measure, args=(samples, theirs))
    process.start()
    found = mine.recv()
    process.join()
    return found / samples


def _measure(samples: int, pipe: Any) -> None:
    plan(chat_like(1 << 16), CAPACITY)  # imports
    lengths = chat_like(samples)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = _status("VmRSS")
    plan(lengths, CAPACITY)
    pipe.send(_status("VmHWM") - before)


def _status(name: str) -> int:
    """Bytes, from /proc/self/status."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def ten_billion() -> None:
    lengths = np.arange(1, 8193)
    density = np.exp(-((np.log(lengths) - 6) ** 2) / 2) / lengths
    counts = np.maximum(1, (density / density.sum() * 10**10).astype(np.int64))
    histogram = LengthHistogram(lengths=lengths, counts=counts)
    seconds = statistics.median(timed(lambda: outline(histogram, 8192)) for _ in range(ROUNDS))
    print(f"{histogram.samples:,} samples from their histogram, rows of 8,192: {seconds * 1e3:.0f} ms")
    print(f"  {outline(histogram, 8192).certificate}")


if __name__ == "__main__":
    main()
