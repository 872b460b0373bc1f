"""The main job on real text, from nothing to verified rows: `make quickstart`.

The text is Python's own standard library (see stdlib_corpus.py), so there is nothing to download.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from stdlib_corpus import write_corpus
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

OUT = Path("quickstart-out")
CORPUS, TOKENIZER, STORE = OUT / "functions.jsonl", OUT / "tokenizer.json", OUT / "store"
AUDIT, BENCH, REPORT = OUT / "audit.json", OUT / "bench.json", OUT / "report.html"


def main() -> None:
    started = time.perf_counter()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()

    say("1. A corpus: every function of the standard library that has a docstring")
    count = write_corpus(CORPUS)
    print(f"{count:,} functions, {CORPUS.stat().st_size / 1e6:.1f} MB in {CORPUS}")

    say("2. A byte-level BPE tokenizer, trained on it")
    train_tokenizer(CORPUS, TOKENIZER)
    print(f"8,192 tokens in {TOKENIZER}")

    say("3. Pack: the prompt is the signature and docstring, the target is the body")
    padless(
        "pack", CORPUS, "--tokenizer", TOKENIZER, "--capacity", 2048, "--targets", "completion", "--oversize", "split",
        "-o", STORE,
    )  # fmt: skip

    say("4. Verify: read everything back and check each promise")
    padless("verify", STORE)

    say("5. Audit: prove on a small model, with samples of this corpus, that packing changes nothing")
    padless("audit", "llama", "--random", "--attn", "padless", "--data", STORE, "-o", AUDIT)

    say("6. Train: the same model on the same samples, padded and packed")
    run("python", Path(__file__).with_name("train_quickstart.py"), STORE)

    say("7. Measure: one optimizer step in every way of batching the same 12 samples")
    padless(
        "bench", "step", "--data", STORE, "--model", "llama-1m", "--length", 1024, "--samples", 12, "--quiet",
        "-o", BENCH,
    )  # fmt: skip

    say("8. Report: one HTML file that shows it all")
    padless("report", STORE, "--audit", AUDIT, "--bench", BENCH, "-o", REPORT)

    say(f"Done in {time.perf_counter() - started:.0f} s. Next:")
    command = os.path.relpath(Path(sys.executable).parent / "padless")
    print(f"   {command} inspect {STORE} --row 0          # look at a row")
    print(f"   {command} plan {STORE} --capacity 8192     # other rows from the same tokens, in seconds")
    print(f"   {command} pack YOUR.jsonl --tokenizer {TOKENIZER} --capacity 2048 -o my-store")


def train_tokenizer(corpus: Path, output: Path) -> None:
    """A small byte-level BPE, the kind that GPT-2 made common."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8192,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(corpus), trainer)
    tokenizer.save(str(output))


def texts(corpus: Path) -> Iterator[str]:
    with corpus.open(encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            yield record["prompt"] + record["completion"]


def padless(*arguments: object) -> None:
    """Run the command line as a user would."""
    run("padless", *arguments)


def run(program: str, *arguments: object) -> None:
    """Show a command and run it with this Python; stop where it fails."""
    words = [os.path.relpath(word) if isinstance(word, Path) else str(word) for word in arguments]
    print("$", program, *words, flush=True)
    module = ["-m", "padless"] if program == "padless" else []
    done = subprocess.run([sys.executable, *module, *words], check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def say(line: str) -> None:
    print(f"\n{line}", flush=True)


if __name__ == "__main__":
    main()
