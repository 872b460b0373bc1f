"""How fast one process delivers rows, beside a memory copy and beside `datasets` with TRL's collator.

    python benchmarks/loading.py

Prints three tables: batches of rows of 4,096 tokens against copying the same arrays; the same rows through `datasets`
and TRL's padding-free collator; and the time from opening a store of a billion tokens to its first row, in a process
of its own. Both sides keep their last 8 batches alive, as a loader that reads ahead does, and each figure is the best
of several passes.
"""

import collections
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from padless import TokenStore, plan
from padless.corpus.manifest import MANIFEST
from padless.frameworks.export import export
from padless.frameworks.transformers_batch import transformers_batch
from padless.training import PackedDataset

CAPACITY = 4096
CORPORA = {"chat-like": (15_000, 6.0), "documents": (5_000, 7.3)}  # samples, mean of the log of their length
PASSES = 5
HELD = 8  # batches that stay alive
BILLION_SHARDS, SHARD_SAMPLES, SAMPLE_TOKENS = 16, 64_000, 1_000

FIRST_ROW = """
import sys, time
from padless import PackedDataset
import padless.corpus.store, padless.training.dataset
opened = time.perf_counter()
row = PackedDataset(sys.argv[1])[0]
print(time.perf_counter() - opened, row.num_tokens)
"""


def fastest(make: Callable[[], Iterable[Any]]) -> float:
    """Seconds of the fastest pass over an iterable, its last batches held."""
    best = float("inf")
    for _ in range(PASSES):
        held = collections.deque(maxlen=HELD)
        started = time.perf_counter()
        held.extend(make())
        best = min(best, time.perf_counter() - started)
    return best


def log_normal_store(folder: Path, samples: int, mean_log: float) -> PackedDataset:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(mean_log, 1, samples).astype(int), 8, CAPACITY)
    store = TokenStore.write(folder, [rng.integers(0, 50_000, n) for n in lengths], vocab_size=50_000)
    return PackedDataset(store, plan=plan(store.lengths, CAPACITY))


def against_a_copy(dataset: PackedDataset) -> None:
    print(f"{'rows a batch':>12} {'rows/s':>10} {'tokens/s':>12} {'copy rows/s':>12} {'of a copy':>10}")
    for rows in (1, 8, 64):
        batches = [range(start, start + rows) for start in range(0, len(dataset) - rows, rows)]
        delivered = fastest(lambda batches=batches: map(dataset.__getitems__, batches))
        examples = [dataset.__getitems__(batches[i % len(batches)]) for i in range(max(1024 // rows, 1))]
        arrays = [(batch.input_ids, batch.labels, batch.position_ids) for batch in examples]

        def copies(arrays: list = arrays, count: int = len(batches)) -> Iterable[Any]:
            return ([array.copy() for array in arrays[i % len(arrays)]] for i in range(count))

        copied = fastest(copies)
        count = rows * len(batches)
        print(
            f"{rows:>12} {count / delivered:>10,.0f} {count * CAPACITY / delivered:>12,.0f} "
            f"{count / copied:>12,.0f} {copied / delivered:>10.2f}"
        )


def against_trl(dataset: PackedDataset, folder: Path) -> None:
    from datasets import Dataset, disable_progress_bars
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    disable_progress_bars()
    export(dataset, folder, to="trl")
    theirs = Dataset.from_parquet([str(path) for path in sorted(folder.glob("*.parquet"))], cache_dir=str(folder))
    collate = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    print(f"{'rows a batch':>12} {'padless rows/s':>15} {'datasets + TRL':>15} {'ratio':>8}")
    for rows in (1, 8):
        batches = [list(range(start, start + rows)) for start in range(0, min(len(dataset), 400) - rows, rows)]
        ours = fastest(lambda batches=batches: (transformers_batch(dataset.__getitems__(b)) for b in batches))
        other = fastest(lambda batches=batches: (collate([theirs[i] for i in b]) for b in batches))
        count = rows * len(batches)
        print(f"{rows:>12} {count / ours:>15,.0f} {count / other:>15,.0f} {other / ours:>8.1f}")


def billion_token_store(folder: Path) -> None:
    """One shard of 64 million tokens under 16 names: a billion tokens to open, 128 MB to write."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(SAMPLE_TOKENS // 2, SAMPLE_TOKENS * 3 // 2, SHARD_SAMPLES)
    tokens = rng.integers(0, 50_000, int(lengths.sum()), dtype=np.uint16)
    samples = np.split(tokens, np.cumsum(lengths)[:-1])
    store = TokenStore.write(folder, samples, vocab_size=50_000, shard_tokens=1 << 27)
    (shard,) = store.manifest.shards
    names = [f"tokens-{i:05d}.arrow" for i in range(BILLION_SHARDS)]
    for name in names[1:]:
        os.link(folder / shard.name, folder / name)
    counts = store.manifest.counts
    manifest = msgspec.structs.replace(
        store.manifest,
        shards=tuple(msgspec.structs.replace(shard, name=name) for name in names),
        counts=msgspec.structs.replace(
            counts, samples=counts.samples * BILLION_SHARDS, tokens=counts.tokens * BILLION_SHARDS
        ),
    )
    (folder / MANIFEST).write_bytes(manifest.to_json())
    store = TokenStore(folder)
    store.add_plan(plan(store.lengths, CAPACITY))


def first_row(folder: Path) -> None:
    billion_token_store(folder)
    seconds = []
    for _ in range(PASSES):
        ran = subprocess.run([sys.executable, "-c", FIRST_ROW, str(folder)], capture_output=True, text=True, check=True)
        seconds.append(float(ran.stdout.split()[0]))
    tokens = TokenStore(folder).manifest.counts.tokens
    print(f"{tokens:,} tokens: first row {max(seconds):.2f} s after opening (slowest of {PASSES} processes)")


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for name, (samples, mean_log) in CORPORA.items():
            dataset = log_normal_store(Path(scratch) / name, samples, mean_log)
            segments = dataset.plan.num_segments / len(dataset)
            print(f"{name}: {len(dataset):,} rows of {CAPACITY:,}, {segments:.1f} segments a row")
            against_a_copy(dataset)
            against_trl(dataset, Path(scratch) / f"{name}-trl")
            print()
        first_row(Path(scratch) / "billion")


if __name__ == "__main__":
    main()
