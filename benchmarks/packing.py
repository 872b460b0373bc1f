"""How much of the tokenizer's own speed is left when files become samples.

    python benchmarks/packing.py

The text is the Python standard library (examples/stdlib_corpus.py), four times over. The baseline is `encode_batch` of
`tokenizers` on the same texts, already in memory, on all cores. Rounds alternate, and the best of each counts, because
other work on the machine only ever takes time away.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import tokenizers
from rich.console import Console
from rich.table import Table

from padless import pack
from padless.corpus.encode import EncodedSample, Encoder, Targets
from padless.corpus.records import detect_shape
from padless.corpus.sources import find_sources, first_record, read_raw
from padless.corpus.templates import load_template
from padless.corpus.tokenizers import load_tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from quickstart import train_tokenizer
from stdlib_corpus import write_corpus

ROUNDS = 2
COPIES = 4


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        corpus, definition = Path(folder) / "functions.jsonl", Path(folder) / "tokenizer.json"
        write_corpus(corpus)
        train_tokenizer(corpus, definition)
        corpus.write_bytes(corpus.read_bytes() * COPIES)
        with corpus.open() as file:
            texts = [record["prompt"] + record["completion"] for record in map(json.loads, file)]
        backend = tokenizers.Tokenizer.from_file(str(definition))

        def alone() -> int:
            return sum(len(encoding.ids) for encoding in backend.encode_batch(texts))

        def encoded(targets: Targets, template: str | None) -> Callable[[], int]:
            encoder = make_encoder(corpus, definition, targets, template)
            return lambda: sum(len(sample.ids) for sample in samples(corpus, encoder))

        def job(workers: int) -> Callable[[], int]:
            def run() -> int:
                with tempfile.TemporaryDirectory() as output:
                    summary = pack(
                        corpus,
                        tokenizer=str(definition),
                        capacity=2048,
                        targets="completion",
                        oversize="split",
                        workers=workers,
                        output=Path(output) / "store",
                    )
                return summary.tokens

            return run

        cores = os.cpu_count() or 1
        cases = {
            "encode_batch alone": alone,
            "read + encode, targets all": encoded("all", None),
            "read + encode, targets completion": encoded("completion", None),
            "read + encode, chat template, targets assistant": encoded("assistant", "chatml"),
            "whole job, targets completion, 1 process": job(1),
            f"whole job, targets completion, {cores} processes": job(cores),
        }
        show({name: best_speed(case, alone) for name, case in cases.items()})


def make_encoder(corpus: Path, definition: Path, targets: Targets, template: str | None) -> Encoder:
    tokenizer = load_tokenizer(str(definition))
    return Encoder(
        tokenizer=tokenizer,
        shape=detect_shape(first_record(find_sources([corpus])).fields),
        targets=targets,
        template=load_template(template, tokenizer) if template else None,
    )


def samples(corpus: Path, encoder: Encoder) -> Iterator[EncodedSample]:
    for source in find_sources([corpus]):
        for batch in read_raw(source):
            for sample in encoder.encode(batch):
                assert isinstance(sample, EncodedSample), sample
                yield sample


def best_speed(case: Callable[[], int], baseline: Callable[[], int]) -> tuple[float, float]:
    """Tokens per second, and as a share of the baseline's, both at their best over alternating rounds."""
    fastest, fastest_baseline = 0.0, 0.0
    for _ in range(ROUNDS):
        fastest_baseline = max(fastest_baseline, speed(baseline))
        fastest = max(fastest, speed(case))
    return fastest, fastest / fastest_baseline


def speed(run: Callable[[], int]) -> float:
    started = time.perf_counter()
    tokens = run()
    return tokens / (time.perf_counter() - started)


def show(results: dict[str, tuple[float, float]]) -> None:
    table = Table("what", "tokens/s", "of encode_batch", title="Encoding the standard library's functions")
    for name, (speed, share) in results.items():
        table.add_row(name, f"{speed:,.0f}", f"{share:.0%}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
