"""`--engine ray`: the bytes of the local engine, whatever dies on the way."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from padless import pack
from padless.errors import PadlessError
from padless.frameworks.ray_engine import RayEngine

RUNS = Path(__file__).parent / "ray_runs.py"


@pytest.mark.slow
@pytest.mark.interop
def test_a_cluster_makes_the_bytes_of_one_process_though_a_worker_dies(tmp_path: Path) -> None:
    """In a process of its own session, so that nothing of Ray's can outlive the test."""
    environment = {**os.environ, "RAY_ADDRESS": "", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(
        [sys.executable, str(RUNS), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        printed, errors = process.communicate(timeout=240)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 0, errors[-3000:]
    found = json.loads(printed.splitlines()[-1])
    assert found["killed"] is not None, "no worker was caught at work"
    assert found["same"], "the store of the run in which a worker died"
    assert found["shards"] > 10
    assert 1 <= found["left"] < 6
    assert found["resumed"], "the store of the run whose driver was stopped between two parts"
    assert found["begun_here"] > 0
    assert found["here_first"], "a run that one process began and a cluster ended"
    assert found["there_first"], "a run that a cluster began and one process ended"
    assert found["command"] == [0, 12 * 2499], "inputs by relative names"
    [said] = found["said"]
    assert found["left"] <= int(said.split()[0]) <= 6
    assert said.endswith("of 6 parts are done by an earlier run")
    assert "packing, 6 of 6 parts" in found["phases"]
    assert ".jsonl:1251" in found["refused"]
    assert found["clean"], "a run that ends with an error leaves nothing"
    assert found["parts_same"], "stores of parts"
    rows, together, *here = found["rows"]
    assert here == [rows, together]
    assert rows >= together > 0


class FakeRay:
    """A cluster whose nodes come and go: as many cores as each look at it is told."""

    class exceptions:  # noqa: N801 - ray's own name for it
        class RayError(Exception):
            pass

        class RayTaskError(RayError):
            def __init__(self, cause: Exception) -> None:
                super().__init__(str(cause))
                self.cause = cause

    def __init__(self, cores: list[int]) -> None:
        self.cores = cores
        self.most = 0
        self.open: list = []

    def remote(self, **settings: object):
        def decorate(function):
            def call(*arguments):
                self.open.append((function, arguments))
                self.most = max(self.most, len(self.open))
                return len(self.open) - 1, function, arguments

            return type("Task", (), {"remote": staticmethod(call)})

        return decorate

    def cluster_resources(self) -> dict[str, int]:
        cores = self.cores.pop(0) if len(self.cores) > 1 else self.cores[0]
        return {"CPU": cores} if cores else {}

    def wait(self, references: list, num_returns: int = 1, timeout: float | None = None):
        self.open.pop()
        return references[:num_returns], references[num_returns:]

    def get(self, reference):
        _, function, arguments = reference
        try:
            return function(*arguments)
        except Exception as error:
            raise self.exceptions.RayTaskError(error) from error


@pytest.mark.parametrize("cores", [[2], [4, 1, 0, 0, 2], [0]])
def test_every_call_is_made_once_while_nodes_come_and_go(cores: list[int]) -> None:
    ray, most = FakeRay([*cores]), max(2 * max(cores), 1)
    assert dict(RayEngine(ray).results(abs, [(-n,) for n in range(50)])) == {n: n for n in range(50)}
    assert ray.most <= most


def test_wrong_input_and_a_failing_worker_are_told_apart() -> None:
    def refuse(_: int) -> None:
        raise PadlessError("the input is wrong")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(PadlessError, match=r"^the input is wrong$"):
        dict(RayEngine(FakeRay([2])).results(refuse, [(1,), (2,)]))
    with pytest.raises(OSError, match="a worker failed") as caught:
        dict(RayEngine(FakeRay([2])).results(fail, [(1,), (2,)]))
    assert "No space left" in str(caught.value)


@pytest.mark.interop
def test_an_address_where_nobody_listens_is_refused_at_once(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound and not listening: nobody answers there
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = ["pack", "-", "-t", "bytes", "-c", "64", "-o", str(tmp_path / "store"), "--engine", "ray"]
        done = subprocess.run(
            [sys.executable, "-m", "padless", *command, "--address", address],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2, done.stderr
    assert f"no Ray cluster answers at {address}" in done.stderr


def test_a_corpus_of_one_part_is_not_sent_to_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "to be"}\n')
    with pytest.raises(PadlessError, match="say part_bytes"):
        pack(tmp_path / "a.jsonl", tokenizer="bytes", capacity=8, output=tmp_path / "s", engine=RayEngine(FakeRay([1])))
    assert not (tmp_path / "s").exists()
