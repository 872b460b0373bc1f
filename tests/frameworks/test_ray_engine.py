"""`--engine ray`: the bytes of the local engine, whatever dies on the way."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
