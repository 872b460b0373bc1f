"""The loader with workers: the same batches in the same order, resumed exactly, in every trainer's hands."""

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from padless import Batch
from padless.training import PackedDataset, PackedLoader, RowSampler, check_resume
from padless.training.contract import same


def batches(dataset: PackedDataset, workers: int, **options: Any) -> list[Batch]:
    return list(loader(dataset, workers, **options))


def loader(dataset: PackedDataset, workers: int, **options: Any) -> PackedLoader:
    return PackedLoader(RowSampler(dataset, rows=4, drop_last=False), num_workers=workers, **options)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_give_the_same_batches_in_the_same_order(dataset: PackedDataset, start: str) -> None:
    alone = batches(dataset, 0)
    assert all(isinstance(batch.input_ids, torch.Tensor) for batch in alone)
    assert same(alone, batches(dataset, 2, multiprocessing_context=start))
    assert sorted(np.concatenate([batch.sample_ids for batch in alone])) == list(range(len(dataset.store)))


def test_a_stream_goes_on_with_another_number_of_workers(dataset: PackedDataset) -> None:
    """Workers read ahead, over the end of the epoch too; the state must not."""
    workers = itertools.cycle([0, 2, 1])
    steps = len(loader(dataset, 0)) + 2
    check_resume(lambda: loader(dataset, next(workers), prefetch_factor=None), steps=steps, every=3)


def test_workers_read_the_rows_of_a_plan_that_they_never_saw(dataset: PackedDataset) -> None:
    """With `replan` the sampler sends the segments themselves."""

    def two_epochs(workers: int) -> list[Batch]:
        source = PackedLoader(RowSampler(dataset, rows=4, drop_last=False, replan=True), num_workers=workers)
        return [*source, *source]

    alone = two_epochs(0)
    assert same(alone, two_epochs(2))
    seen = np.sort(np.concatenate([batch.sample_ids for batch in alone]))
    assert seen.tolist() == np.repeat(np.arange(len(dataset.store)), 2).tolist()


@pytest.mark.slow
def test_a_killed_run_loses_nothing_and_repeats_nothing(dataset: PackedDataset, tmp_path: Path) -> None:
    """A process that saves its state after every batch is killed wherever it is, again and again."""
    log, state = tmp_path / "log", tmp_path / "state"
    plan_file = tmp_path / "plan.npz"
    dataset.plan.save(plan_file)
    whole = [batch.sample_ids.tolist() for batch in batches(dataset, 0)]
    steps, kills = len(whole), 0
    while not log.exists() or len(log.read_text().splitlines()) < steps:
        run = subprocess.Popen(
            [sys.executable, "-c", TRAIN, str(dataset.store.path), str(plan_file), str(log), str(state)]
        )
        done = len(log.read_text().splitlines()) if log.exists() else 0
        while run.poll() is None and (not log.exists() or len(log.read_text().splitlines()) < done + 3):
            time.sleep(0.01)
        kills += run.poll() is None
        run.kill()
        run.wait()
    assert kills > 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines == whole


TRAIN = """
import json, os, sys, time
from padless import Plan
from padless.training import PackedDataset, PackedLoader, RowSampler

store, plan, log, state = sys.argv[1:]
loader = PackedLoader(RowSampler(PackedDataset(store, plan=Plan.load(plan)), rows=4, drop_last=False))
if os.path.exists(state):
    saved = json.load(open(state))
    loader.load_state_dict(saved["loader"])
    lines = open(log).readlines()[: saved["lines"]]  # what was trained after the checkpoint is trained again
    open(log, "w").writelines(lines)
for batch in loader:
    with open(log, "a") as file:
        file.write(json.dumps(batch.sample_ids.tolist()) + chr(10))
    with open(state + ".new", "w") as file:
        json.dump({"loader": loader.state_dict(), "lines": len(open(log).readlines())}, file)
    os.replace(state + ".new", state)
    time.sleep(0.02)
"""


def test_a_loop_that_stops_early_starts_its_epoch_again(dataset: PackedDataset) -> None:
    """Even when the workers had read to the end of the epoch already."""
    source = loader(dataset, 2, prefetch_factor=8)
    whole = batches(dataset, 0)
    next(iter(source))
    assert source.state_dict()["step"] == 1
    assert same(next(iter(source)), whole[0])
    source.set_epoch(1)
    assert (source.state_dict()["epoch"], source.state_dict()["step"]) == (1, 0)
    assert len(source) == len(whole)


def test_a_dialect_is_a_collate_function(dataset: PackedDataset) -> None:
    from padless.frameworks.transformers_batch import transformers_batch

    first = next(iter(loader(dataset, 0, collate_fn=transformers_batch)))
    assert first["input_ids"].shape == (1, first["cu_seq_lens_q"][-1])


def test_the_plain_loader_of_torch_works_too(dataset: PackedDataset) -> None:
    sampler = RowSampler(dataset, rows=4, drop_last=False)
    plain = DataLoader(dataset, batch_sampler=sampler, collate_fn=Batch.torch)  # type: ignore[arg-type]
    assert same(list(plain), batches(dataset, 0))
    shuffled = DataLoader(dataset, batch_size=5, shuffle=True, collate_fn=Batch.torch)  # type: ignore[arg-type]
    assert sum(batch.num_rows for batch in shuffled) == len(dataset)


def test_pinning_asks_the_batch(dataset: PackedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """`DataLoader(pin_memory=True)` pins by calling `Batch.pin_memory`; without an accelerator it only warns."""
    from torch.utils.data._utils.pin_memory import pin_memory

    pinned = []
    monkeypatch.setattr(Batch, "pin_memory", lambda self: pinned.append(self) or self)
    pin_memory(dataset[0].torch())
    assert len(pinned) == 1
