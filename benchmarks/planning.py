"""Planning: seconds and rows against other packers, memory, histograms alone, and how near to optimal.

    python benchmarks/planning.py [--only speed|memory|histogram|quality] [--samples N] [--rounds N] [--trl-rounds N]

Lengths are chat-like: lognormal with median 350 and sigma 0.9, from 8 to 4,096. Every packer gets them in memory and
gives back which sample is in which row. Rounds alternate between packers and the median of each counts.

LightBinPack (C++) is measured where it is installed (`pip install lightbinpack`; it compiles). TRL packs Arrow tables
of tokens; what is measured is its search alone: its own segment tree, and a loop over lengths that does the steps of
its `bfd` on the types that it has there (numpy's numbers, a dict per row). Joining tokens, which takes it longer, is
left out. The compiled segment tree is the algorithm of Ding et al. 2024 in numba, written here as a yardstick. The
quality table needs lengths that are not part of the project: $PADLESS_TEST_DATA, or shared/data beside the checkout.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from padless.lengths import LengthHistogram
from padless.planning import outline, plan

CAPACITY = 4096
HISTOGRAM_CAPACITY = 8192
DATA = Path(os.environ.get("PADLESS_TEST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
OUT = Console(width=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trl-rounds", type=int, default=1, help="TRL needs about a minute for 10 million samples")
    parser.add_argument("--only", choices=["speed", "memory", "histogram", "quality"])
    chosen = parser.parse_args()
    parts = {
        "speed": lambda: speed(chosen.samples, chosen.rounds, chosen.trl_rounds),
        "memory": lambda: memory(chosen.samples),
        "histogram": lambda: histogram(chosen.samples),
        "quality": quality,
    }
    for name, part in parts.items():
        if chosen.only in (None, name):
            part()


def chat_lengths(samples: int, capacity: int = CAPACITY) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.clip(np.exp(rng.normal(np.log(350), 0.9, samples)).astype(np.int64), 8, capacity)


def speed(samples: int, rounds: int, trl_rounds: int) -> None:
    lengths = chat_lengths(samples)
    packers: dict[str, Callable[[], int] | None] = {
        "padless best-fit-decreasing": lambda: plan(lengths, CAPACITY).num_rows,
        "segment tree, compiled": segment_tree(lengths),
        "LightBinPack obfd (C++)": light_bin_pack(lengths),
        "TRL bfd": trl(lengths),
    }
    for name, packer in packers.items():
        if packer is not None and name != "TRL bfd":
            packer()  # compiles, and fills caches
    seconds: dict[str, list[float]] = {name: [] for name in packers}
    rows: dict[str, int] = {}
    for number in range(rounds):
        for name, packer in packers.items():
            if packer is None or (name == "TRL bfd" and number >= trl_rounds):
                continue
            began = time.perf_counter()
            rows[name] = packer()
            seconds[name].append(time.perf_counter() - began)
    ours = statistics.median(seconds["padless best-fit-decreasing"])
    table = Table(title=f"{samples:,} chat lengths at {CAPACITY:,}, sample ids included; {numba_note()}")
    for column in ("packer", "rounds", "median s", "min s", "x padless", "rows"):
        table.add_column(column, justify="left" if column == "packer" else "right")
    for name, times in seconds.items():
        if not times:
            table.add_row(name, "not installed", "", "", "", "")
            continue
        median = statistics.median(times)
        cells = (f"{len(times)}", f"{median:.3f}", f"{min(times):.3f}", f"{median / ours:.1f}", f"{rows[name]:,}")
        table.add_row(name, *cells)
    OUT.print(table)


def numba_note() -> str:
    return "numba installed" if importlib.util.find_spec("numba") else "numpy only"


def light_bin_pack(lengths: np.ndarray) -> Callable[[], int] | None:
    if importlib.util.find_spec("lightbinpack") is None:
        return None
    import lightbinpack

    as_list = lengths.tolist()  # its binding takes a list; making the list is not counted
    return lambda: len(lightbinpack.obfd(as_list, CAPACITY))


def trl(lengths: np.ndarray) -> Callable[[], int] | None:
    if importlib.util.find_spec("trl") is None:
        return None
    from trl.data_utils import _SegmentTree

    def run() -> int:
        tree = _SegmentTree(CAPACITY)
        tree.add(CAPACITY)
        by_space = defaultdict(deque)
        rows: list[list[int]] = []
        order = np.argsort(-lengths, kind="stable")
        for sample, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
            space = tree.search(length)
            if space < CAPACITY:
                row = by_space[space].popleft()
                if not by_space[space]:
                    tree.remove(space)
            else:
                row = []
                rows.append(row)
            row.append(sample)
            left = space - length
            if left:
                by_space[left].append(row)
                tree.add(left)
        return len(rows)

    return run


def segment_tree(lengths: np.ndarray) -> Callable[[], int] | None:
    if importlib.util.find_spec("numba") is None:
        return None
    import numba

    order_of, place, grouped = numba.njit(_descending), numba.njit(_place), numba.njit(_by_row)

    def run() -> int:
        row_of, rows = place(lengths, order_of(lengths, CAPACITY), CAPACITY)
        return grouped(row_of, rows)[0].size - 1

    return run


def _descending(lengths, capacity):
    """The samples from longest to shortest, by counting."""
    at = np.zeros(capacity + 2, np.int64)
    for i in range(lengths.size):
        at[capacity - lengths[i] + 1] += 1
    at = np.cumsum(at)
    order = np.empty(lengths.size, np.int32)
    for i in range(lengths.size):
        key = capacity - lengths[i]
        order[at[key]] = i
        at[key] += 1
    return order


def _place(lengths, order, capacity):
    """Best fit, sample by sample: a tree of maxima over free spaces finds the tightest row."""
    leaves = 1
    while leaves < capacity + 1:
        leaves *= 2
    tree = np.full(2 * leaves, -1, np.int32)
    top = np.full(capacity + 1, -1, np.int32)  # of the stack of rows at each free space
    below = np.empty(order.size, np.int32)
    row_of = np.empty(order.size, np.int32)
    rows = 0
    for sample in order:
        length = lengths[sample]
        space, row = capacity, rows
        if tree[1] >= length:
            node = 1
            while node < leaves:
                node = 2 * node + (tree[2 * node] < length)
            space = node - leaves
            row = top[space]
            top[space] = below[row]
            value = tree[node] if top[space] >= 0 else -1
            while tree[node] != value:
                tree[node] = value
                node //= 2
                value = max(tree[2 * node], tree[2 * node + 1]) if node else tree[node]
        else:
            rows += 1
        row_of[sample] = row
        space -= length
        below[row] = top[space]
        top[space] = row
        node = space + leaves
        while space and node and tree[node] < space:
            tree[node] = space
            node //= 2
    return row_of, rows


def _by_row(row_of, rows):
    """Row offsets, and the samples row by row."""
    offsets = np.zeros(rows + 1, np.int64)
    for i in range(row_of.size):
        offsets[row_of[i] + 1] += 1
    offsets = np.cumsum(offsets)
    at = offsets.copy()
    samples = np.empty(row_of.size, np.int64)
    for i in range(row_of.size):
        samples[at[row_of[i]]] = i
        at[row_of[i]] += 1
    return offsets, samples


def memory(samples: int) -> None:
    """Peak resident memory of a fresh process that plans, above what it had with the lengths loaded."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lengths.npy"
        np.save(path, chat_lengths(samples).astype(np.int32))
        found = subprocess.run([sys.executable, "-c", _CHILD, str(path)], check=False, capture_output=True, text=True)
    if found.returncode:
        OUT.print(f"memory: not measured here ({found.stderr.strip().splitlines()[-1]})")
        return
    peak, given = (float(number) for number in found.stdout.split())
    OUT.print(
        f"\nmemory: {peak / samples:.1f} bytes per sample at the peak of planning, the plan's own arrays included, "
        f"beside {given / samples:.1f} for the lengths themselves"
    )


_CHILD = f"""
import gc, re, sys
from pathlib import Path
import numpy as np
from padless.planning import plan

def kib(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

lengths = np.load(sys.argv[1])
plan(lengths[: max(1, lengths.size // 8)], {CAPACITY})
gc.collect()
Path("/proc/self/clear_refs").write_text("5")
before = kib("VmRSS")
plan(lengths, {CAPACITY})
print(kib("VmHWM") - before, lengths.nbytes)
"""


def histogram(samples: int) -> None:
    """The plan of a histogram alone, at growing sizes of the corpus."""
    found = LengthHistogram.of(chat_lengths(min(samples, 4_000_000), HISTOGRAM_CAPACITY))
    table = Table(title=f"rows from the histogram alone, capacity {HISTOGRAM_CAPACITY:,}")
    for column in ("samples", "distinct lengths", "median ms", "rows", "gap"):
        table.add_column(column, justify="right")
    for wanted in (found.samples, 10**8, 10**10):
        grown = LengthHistogram(lengths=found.lengths, counts=np.maximum(1, found.counts * wanted // found.samples))
        times = []
        for _ in range(5):
            began = time.perf_counter()
            made = outline(grown, HISTOGRAM_CAPACITY)
            times.append(time.perf_counter() - began)
        table.add_row(
            f"{grown.samples:,}",
            f"{grown.lengths.size:,}",
            f"{statistics.median(times) * 1e3:.1f}",
            f"{made.certificate.rows:,}",
            f"{made.certificate.gap:.5%}",
        )
    OUT.print(table)


def quality() -> None:
    """Rows of the default and of `optimal`, and how few any plan needs."""
    if importlib.util.find_spec("highspy") is None or importlib.util.find_spec("numba") is None:
        OUT.print("quality: needs padless[optimal]")
        return
    table = Table(title="how near to optimal")
    for column in ("lengths", "capacity", "depth", "best fit", "optimal", "bound", "by", "gap", "seconds"):
        table.add_column(column, justify="left" if column == "lengths" else "right")
    for name, lengths, capacity, depth in instances():
        first = outline(lengths, capacity, max_segments=depth, oversize="truncate")
        began = time.perf_counter()
        best = outline(lengths, capacity, strategy="optimal", max_segments=depth, oversize="truncate").certificate
        table.add_row(
            name,
            f"{capacity:,}",
            str(depth or ""),
            f"{first.certificate.rows:,}",
            f"{best.rows:,}",
            f"{best.lower_bound:,}",
            best.bound_by,
            f"{best.gap:.4%}",
            f"{time.perf_counter() - began:.2f}",
        )
    OUT.print(table)


def instances() -> list[tuple[str, LengthHistogram, int, int | None]]:
    rng = np.random.default_rng(0)
    made = [
        ("uniform 50..800, 1 M", LengthHistogram.of(rng.integers(50, 801, 1_000_000)), 4096, None),
        ("(L/4, L/2], 1 M", LengthHistogram.of(rng.integers(1025, 2049, 1_000_000)), 4096, None),
    ]
    if not DATA.is_dir():
        OUT.print(f"quality: no data at {DATA}; real lengths left out")
        return made

    def counts(name: str) -> LengthHistogram:
        return LengthHistogram.from_counts(json.loads((DATA / name).read_text())["counts"])

    wikipedia = counts("wikipedia_bert_512_histogram.json")
    gsm8k = json.loads((DATA / "token_lengths_cl100k.json").read_text())["gsm8k_train_qa"]["lengths"]
    azure = np.load(DATA / "azure_llm_2023_conv_lengths.npy").sum(axis=1)
    return [
        ("Wikipedia, BERT", wikipedia, 512, 3),
        ("Wikipedia, BERT", wikipedia, 512, 4),
        ("Wikipedia, BERT", wikipedia, 512, None),
        ("SQuAD 1.1, BERT", counts("squad_1_1_bert_384_histogram.json"), 384, None),
        ("GSM8K", LengthHistogram.of(gsm8k), 512, None),
        ("GSM8K", LengthHistogram.of(gsm8k), 2048, None),
        ("Azure chat 2023", LengthHistogram.of(azure), 4096, None),
        *made,
    ]


if __name__ == "__main__":
    main()
