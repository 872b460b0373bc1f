"""A training process killed in the middle of a step goes on to the same losses and weights, bit for bit, in float64."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STEPS = 18  # an epoch and a half: the order of the second epoch is resumed too

# Runs the torchtitan-style example; told to, it kills itself inside an optimizer step, after some weights have moved.
PROGRAM = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path

    import torch
    from train_torchtitan_style import make_model, train

    from padless import PackedDataset
    from padless.training import PackedLoader

    folder, store, steps, kill_in, workers = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
    torch.set_num_threads(1)
    taken = 0

    class Killed(torch.optim.AdamW):
        def step(self, closure=None):
            global taken
            taken += 1
            super().step(closure)
            if taken == kill_in:
                os.kill(os.getpid(), signal.SIGKILL)

    torch.optim.AdamW = Killed
    read_ahead = lambda sampler: PackedLoader(sampler, num_workers=workers)
    train.__globals__["PackedLoader"] = read_ahead
    model = make_model(96).double()
    losses = train(model, PackedDataset(store), packed=True, steps=steps, checkpoint=folder / "run.pt")
    torch.save({"losses": losses, "model": model.state_dict()}, folder / "done.pt")
    """
)


def run(folder: Path, store: str, *, kill_in: int = 0, workers: int = 0) -> int:
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES), "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-c", PROGRAM, folder, store, str(STEPS), str(kill_in), str(workers)]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.slow
def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from training_task import write_store

    store = str(write_store(str(tmp_path / "store"), count=300, longest=128).path)
    assert run(tmp_path / "whole", store) == 0
    assert run(tmp_path / "killed", store, kill_in=5, workers=1) == -signal.SIGKILL
    saved = torch.load(tmp_path / "killed" / "run.pt")
    assert len(saved["losses"]) == 4, "the step that the kill hit is not in the checkpoint"
    assert run(tmp_path / "killed", store, kill_in=9) == -signal.SIGKILL
    assert len(torch.load(tmp_path / "killed" / "run.pt")["losses"]) == 12
    assert run(tmp_path / "killed", store) == 0

    whole, killed = (torch.load(tmp_path / name / "done.pt") for name in ("whole", "killed"))
    assert [x.hex() for x in killed["losses"]] == [x.hex() for x in whole["losses"]]
    assert len(set(whole["losses"])) == STEPS
    for name, weights in whole["model"].items():
        assert torch.equal(weights, killed["model"][name]), name
        assert weights.dtype == torch.float64
