"""Make again what docs/ shows from code: each command below writes its table between the marks of its page.

    make docs

Tables of benchmarks that take many minutes or another package are made by the command printed beside them.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = [
    ["benchmarks/architectures.py", "--write", "docs/transformers.md"],
    ["benchmarks/step.py", "--write", "docs/performance.md"],
]


def main() -> None:
    for command in COMMANDS:
        print("$ python", *command, flush=True)
        subprocess.run([sys.executable, *command], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
