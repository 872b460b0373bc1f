"""What 10^13 tokens cost, from rates that are measured here, and what planning part by part costs in rows.

    python benchmarks/scale.py [LENGTHS]

Text is the Python standard library with a tokenizer trained on it; one core, CPU time. LENGTHS is a file that
`padless plan` reads, from which corpora of any size are drawn; a log-normal with a tail stands in without one. What is
measured and what is multiplied is said line by line.
"""

import heapq
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
from rich.console import Console
from rich.table import Table

from padless import LengthHistogram, pack
from padless.durable import sha256_of
from padless.lengths import read_lengths
from padless.planning import PlanSpec, outline_with, plan_with

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from quickstart import train_tokenizer
from stdlib_corpus import write_corpus

TOKENS = 10**13
CAPACITY = 8192
CORES = 1024
PART_BYTES = 1 << 30
LOST_PER_CORE_HOUR = 1e-3  # a core's worker dies once in a thousand hours
PARTS_DRAWN = 8


def main() -> None:
    lengths = lengths_of(sys.argv[1] if len(sys.argv) > 1 else None)
    show_sharding(lengths)
    show_costs(lengths, measured())


def lengths_of(path: str | None) -> np.ndarray:
    """Lengths to draw from, at most a row each."""
    if path is None:
        drawn = np.random.default_rng(0).lognormal(6.0, 1.1, 200_000)
        return np.clip(drawn, 1, CAPACITY).astype(np.int64)
    if path.endswith(".npy"):
        found = np.load(path)
        found = found.sum(axis=1) if found.ndim == 2 else found  # prompt and answer, in two columns
        return np.minimum(found[found > 0], CAPACITY)
    found = read_lengths(path)
    if isinstance(found, LengthHistogram):
        found = np.repeat(found.lengths, found.counts)
    return np.minimum(found, CAPACITY)


def show_sharding(lengths: np.ndarray) -> None:
    """Rows of parts of n samples, beside their share of one plan over everything."""
    table = Table("samples in a part", "tokens in a part", "waste of a part", "rows more than one plan", box=None)
    whole = LengthHistogram.of(lengths)
    everything = LengthHistogram(lengths=whole.lengths, counts=whole.counts * 1_000_000)
    spec = PlanSpec(capacity=CAPACITY)
    together = outline_with(everything, spec)
    per_token = together.certificate.rows / everything.tokens
    rng = np.random.default_rng(1)
    for samples in (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000):
        rows = tokens = 0
        for _ in range(PARTS_DRAWN):
            counts = rng.multinomial(samples, whole.counts / whole.samples)
            part = LengthHistogram(lengths=whole.lengths[counts > 0], counts=counts[counts > 0])
            rows += outline_with(part, spec).certificate.rows
            tokens += part.tokens
        waste = 1 - tokens / (rows * CAPACITY)
        more = rows / (tokens * per_token) - 1
        table.add_row(f"{samples:,}", f"{tokens // PARTS_DRAWN:,}", f"{waste:.3%}", f"{more:+.3%}")
    console = Console(width=100)
    console.print(
        f"Rows of {CAPACITY:,} over {everything.samples:,} samples of {lengths.mean():,.0f} tokens on average:"
    )
    console.print(f"one plan over the merged histogram: {together.certificate.rows:,} rows, ", end="")
    console.print(f"{together.accounting.waste_rate:.4%} waste, gap at most {together.certificate.gap:.4%}")
    console.print(table)


def measured() -> dict[str, float]:
    """Rates of one core of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        corpus, definition = Path(folder) / "functions.jsonl", Path(folder) / "tokenizer.json"
        write_corpus(corpus)
        train_tokenizer(corpus, definition)
        began = time.process_time()
        out = Path(folder) / "out"
        summary = pack(corpus, tokenizer=str(definition), capacity=CAPACITY, output=out, oversize="split")
        packing = time.process_time() - began
        began = time.process_time()
        sha256_of(corpus)
        hashing = time.process_time() - began
        store = sum(path.stat().st_size for path in out.glob("tokens-*"))
        size = corpus.stat().st_size
    draw = np.random.default_rng(2).integers(1, 4000, 2_000_000)
    began = time.process_time()
    plan = plan_with(draw, PlanSpec(capacity=CAPACITY))
    planning = time.process_time() - began
    with tempfile.TemporaryDirectory() as folder:
        plan.save(Path(folder) / "plan.npz")
        plan_bytes = (Path(folder) / "plan.npz").stat().st_size
    return {
        "tokens_per_second": summary.tokens / packing,
        "hashed_per_second": size / hashing,
        "bytes_per_token": size / summary.tokens,
        "store_bytes_per_token": store / summary.tokens,
        "planned_per_second": len(draw) / planning,
        "plan_bytes_per_sample": plan_bytes / len(draw),
    }


def show_costs(lengths: np.ndarray, rates: dict[str, float]) -> None:
    """10^13 tokens, by multiplication."""
    samples = TOKENS / lengths.mean()
    text = TOKENS * rates["bytes_per_token"]
    pack_hours = TOKENS / rates["tokens_per_second"] / 3600
    hash_hours = text / rates["hashed_per_second"] / 3600
    plan_hours = samples / rates["planned_per_second"] / 3600
    parts = round(text / PART_BYTES)
    hours, lost = makespan(parts, (pack_hours + hash_hours) / parts)
    moved = 2 * text + 2 * TOKENS * rates["store_bytes_per_token"]
    table = Table("of 10^13 tokens", "", "from", box=None)
    for row in (
        ("text", f"{text / 1e12:,.1f} TB", f"{rates['bytes_per_token']:.2f} bytes a token, measured"),
        ("samples", f"{samples / 1e9:,.1f} billion", f"{lengths.mean():,.0f} tokens each, given"),
        ("encode and store", f"{pack_hours:,.0f} CPU hours", f"{rates['tokens_per_second'] / 1e6:.2f} M tokens/s"),
        ("hash the text", f"{hash_hours:,.0f} CPU hours", f"{rates['hashed_per_second'] / 1e6:,.0f} MB a second"),
        (
            "plan with ids",
            f"{plan_hours:,.1f} CPU hours",
            f"{rates['planned_per_second'] / 1e6:.1f} M samples a second",
        ),
        ("token shards", f"{TOKENS * rates['store_bytes_per_token'] / 1e12:,.1f} TB", "measured, 2 bytes an id here"),
        ("plans", f"{samples * rates['plan_bytes_per_sample'] / 1e9:,.0f} GB", "measured"),
        ("one plan in memory", f"{samples * 40 / 1e9:,.0f} GB", "by count: 40 bytes a sample"),
        ("parts of 1 GiB", f"{parts:,}", "of text"),
        (f"on {CORES:,} cores", f"{hours:,.1f} hours", f"simulated, {lost} workers lost and their parts done again"),
        (
            "file system",
            f"{moved / hours / 3600 / 1e9:,.1f} GB a second",
            "text read twice, shards written and read once",
        ),
    ):
        table.add_row(*row)
    Console(width=100).print(table)


def makespan(parts: int, hours: float) -> tuple[float, int]:
    """Hours until the last part is done on `CORES` cores, and workers that died; parts differ by a fifth."""
    rng = np.random.default_rng(3)
    work = list(hours * rng.lognormal(0, 0.2, parts) / np.exp(0.02))
    free = [0.0] * CORES
    lost = 0
    while work:
        at, size = heapq.heappop(free), work.pop()
        dies = rng.exponential(1 / LOST_PER_CORE_HOUR)
        if dies < size:
            lost += 1
            work.insert(0, size)
        heapq.heappush(free, at + min(size, dies))
    return max(free), lost


if __name__ == "__main__":
    main()
