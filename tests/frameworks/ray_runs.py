"""Pack on a local Ray cluster of two workers, one of them killed in the middle; run by test_ray_engine.py by itself.

    python ray_runs.py FOLDER

Prints one JSON line of what happened.
"""

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import ray
from click.testing import CliRunner

from padless.cli.main import group
from padless.corpus.engine import Progress
from padless.corpus.job import pack
from padless.corpus.part_stores import pack_parts
from padless.corpus.request import PackRequest
from padless.errors import PadlessError
from padless.frameworks.ray_engine import on_ray

FILES, LINES = 12, 2500
SETTINGS = {
    "tokenizer": "bytes",
    "capacity": 256,
    "part_bytes": 150_000,
    "shard_tokens": 60_000,
    "on_bad_record": "skip",
}


def write_inputs(folder: Path) -> None:
    folder.mkdir()
    for number in range(FILES):
        lines = [json.dumps({"text": f"file {number} line {i} " + "x" * (i % 60)}) for i in range(LINES)]
        lines[LINES // 2] = "no JSON"
        (folder / f"{number:02d}.jsonl").write_text("\n".join(lines))


def tree(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class Killer(threading.Thread):
    """Kills the worker that makes the third part that is begun, once: its folder's name holds its process."""

    def __init__(self, parts: Path) -> None:
        super().__init__(daemon=True)
        self.parts = parts
        self.killed: int | None = None
        self.over = False

    def run(self) -> None:
        seen: set[str] = set()
        while self.killed is None and not self.over:
            for path in self.parts.glob(".unfinished-*"):
                seen.add(path.name)
                if len(seen) == 3:
                    self.killed = int(path.name.split("-")[-2])
                    os.kill(self.killed, signal.SIGKILL)
                    return
            time.sleep(0.001)


class StopError(Exception):
    """Ends the driver between two parts."""


def stop_after(parts: int):
    seen = 0

    def report(progress: Progress) -> None:
        nonlocal seen
        seen += progress.phase.startswith("packing")
        if seen == parts:
            raise StopError

    return report


def stop(run: Callable[[], object]) -> None:
    try:
        run()
    except StopError:
        return
    raise AssertionError("the run was to be stopped")


def main(folder: Path) -> None:
    inputs = folder / "in"
    write_inputs(inputs)
    pack(inputs, output=folder / "local", **SETTINGS)
    said: list[str] = []
    phases: list[str] = []
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=50, _node_ip_address="127.0.0.1")
    with on_ray() as engine:
        killer = Killer(folder / "ray" / "parts")
        killer.start()
        report = lambda progress: phases.append(progress.phase)  # noqa: E731
        pack(inputs, output=folder / "ray", engine=engine, report=report, **SETTINGS)
        killer.over = True
        stop(lambda: pack(inputs, output=folder / "stopped", engine=engine, report=stop_after(4), **SETTINGS))
        left = len(list((folder / "stopped" / "parts").glob("*/part.json")))
        pack(inputs, output=folder / "stopped", engine=engine, say=said.append, **SETTINGS)
        stop(lambda: pack(inputs, output=folder / "here-first", report=stop_after(3), **SETTINGS))
        begun_here = len(list((folder / "here-first").glob("tokens-*")))
        pack(inputs, output=folder / "here-first", engine=engine, **SETTINGS)
        stop(lambda: pack(inputs, output=folder / "there-first", engine=engine, report=stop_after(2), **SETTINGS))
        pack(inputs, output=folder / "there-first", **SETTINGS)
        os.chdir(folder)
        arguments = ["pack", "in", "-t", "bytes", "-c", "256", "--on-bad-record", "skip", "-o", "command"]
        command = CliRunner().invoke(group, [*arguments, "--part-bytes", "150000", "--engine", "ray", "--json"])
        try:
            pack(inputs, output=folder / "bad", engine=engine, **{**SETTINGS, "on_bad_record": "error"})
            refused = ""
        except PadlessError as error:
            refused = str(error)
        request = PackRequest(inputs=(str(inputs),), output=folder / "parts", **SETTINGS)
        apart = pack_parts(request, engine=engine)
    ray.shutdown()
    here = pack_parts(PackRequest(inputs=(str(inputs),), output=folder / "here", **SETTINGS))
    expected = tree(folder / "local")
    sys.stdout.write(
        json.dumps(
            {
                "killed": killer.killed,
                "same": tree(folder / "ray") == expected,
                "left": left,
                "resumed": tree(folder / "stopped") == expected,
                "begun_here": begun_here,
                "here_first": tree(folder / "here-first") == expected,
                "there_first": tree(folder / "there-first") == expected,
                "command": [command.exit_code, json.loads(command.stdout)["samples"]],
                "said": [line for line in said if "earlier run" in line],
                "phases": sorted(set(phases)),
                "refused": refused,
                "clean": not (folder / "bad").exists(),
                "shards": sum(name.startswith("tokens") for name in expected),
                "parts_same": tree(folder / "parts") == tree(folder / "here"),
                "rows": [apart.rows, apart.rows_together, here.rows, here.rows_together],
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
