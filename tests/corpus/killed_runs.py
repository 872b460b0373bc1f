"""Kill a pack at chosen moments and go on; run by test_crash.py in a process of its own, because it forks.

    python killed_runs.py INPUT FOLDER SEED

Prints one JSON line: how many runs were killed while they worked, how many had finished shards to go on from, and the
names of the outputs that differ from the undisturbed one.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from corpora import contents

from padless.corpus.job import pack

KILLS = 25
SETTINGS = {"tokenizer": "bytes", "capacity": 64, "oversize": "split", "on_bad_record": "skip", "shard_tokens": 8000}


def in_child(work: Callable[[], object], kill_after: float | None = None) -> int:
    """Run `work` in a forked child; SIGKILL it after that many seconds. Returns its wait status."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def killing_itself_at(step: int) -> Callable[[str, tuple], None]:
    """An audit hook that ends the process at its n-th rename or open: exactly between two steps of the job."""
    seen = 0

    def hook(event: str, arguments: tuple) -> None:
        nonlocal seen
        if event in ("os.rename", "os.remove") or (event == "open" and "unfinished" in str(arguments[0])):
            seen += 1
            if seen == step:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


def main(source: Path, folder: Path, seed: int) -> None:
    def run(name: str) -> Callable[[], object]:
        return lambda: pack(source, output=folder / name, **SETTINGS)

    started = time.perf_counter()
    assert in_child(run("undisturbed")) == 0
    duration = time.perf_counter() - started
    want = contents(folder / "undisturbed")

    def dying(name: str, step: int) -> Callable[[], object]:
        def work() -> None:
            sys.addaudithook(killing_itself_at(step))
            run(name)()

        return work

    chance = random.Random(seed)
    killed = resumable = 0
    different: list[str] = []
    for number in range(2 * KILLS):
        name = f"run-{number}"
        if number < KILLS:
            status = in_child(run(name), kill_after=chance.uniform(0, duration))
        else:
            status = in_child(dying(name, 1 + (number - KILLS) * 2))
        killed += os.WIFSIGNALED(status)
        resumable += (folder / name / "job.json").exists() and (folder / name / "tokens-00000.arrow").exists()
        if in_child(run(name)) != 0 or contents(folder / name) != want:
            different.append(name)
    sys.stdout.write(json.dumps({"killed": killed, "resumable": resumable, "different": different, "files": len(want)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
