"""Peak memory of packing short records, and that it does not grow with the input.

    python benchmarks/packing_memory.py [--records 5000000]

Each size is packed by a process of its own, whose peak resident memory the system reports. What may grow are the plan's
and the lengths' arrays, some 40 bytes for each sample; texts, tokens and shards must not.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

PACK = """
import resource, sys
from padless import pack
summary = pack(sys.argv[1], tokenizer="bytes", capacity=2048, output=sys.argv[2])
print(summary.samples, summary.tokens, summary.rows, summary.seconds,
      resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5_000_000, help="size of the largest input")
    largest = parser.parse_args().records
    table = Table("records", "tokens", "rows", "seconds", "peak MiB", title="Packing short records, capacity 2,048")
    for records in (largest // 10, largest // 3, largest):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "short.jsonl"
            write(source, records)
            done = subprocess.run(
                [sys.executable, "-c", PACK, str(source), str(Path(folder) / "out")],
                check=True,
                capture_output=True,
                text=True,
            )
        samples, tokens, rows, seconds, peak = done.stdout.split()
        counts = [f"{int(value):,}" for value in (samples, tokens, rows)]
        table.add_row(*counts, f"{float(seconds):.0f}", f"{int(peak) / 1024:,.0f}")
    Console(width=100).print(table)


def write(path: Path, records: int) -> None:
    """Short texts of 5 to 60 characters; the same thousand lines again and again, because only sizes matter here."""
    chance = random.Random(0)
    lines = [json.dumps({"text": "x" * chance.randint(5, 60)}) + "\n" for _ in range(1000)]
    with path.open("w") as file:
        for _ in range(-(-records // 1000)):
            file.writelines(lines)


if __name__ == "__main__":
    main()
