"""Every trainer's example: the same samples padded and packed give the same losses, step by step, and packed is faster.

Float64, 20 optimizer steps of AdamW, two accumulation steps each, completion masks, unequal numbers of targets.
"""

import functools
import importlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from transformers import TrainerCallback

from padless import PackedDataset, TokenStore
from padless.frameworks.tiny_models import tiny_model
from padless.training import PackedLoader, RowSampler

pytestmark = [pytest.mark.interop, pytest.mark.slow]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ["hf_trainer", "trl_sft", "accelerate", "lightning", "torchrun_fsdp2", "torchtitan_style"]
STEPS, TOLERANCE = 20, 1e-9


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sys.path.insert(0, str(EXAMPLES))
    try:
        return Path(example("training_task").write_store(str(tmp_path_factory.mktemp("store") / "s")).path)
    finally:
        sys.path.remove(str(EXAMPLES))


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one, as FSDP2 wants it."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def example(name: str) -> Any:
    return importlib.import_module(name if name == "training_task" else f"train_{name}")


class ExactLoss:
    """What a model of Transformers does for `labels`, without its cast of logits to float32; remembers its values.

    The trainers' logs are float32, so that curves of theirs are read here.
    """

    def __init__(self) -> None:
        self.values: list[float] = []

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: Any, **_: Any) -> torch.Tensor:
        flat, targets = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        loss = torch.nn.functional.cross_entropy(flat, targets, reduction="sum") / num_items_in_batch
        self.values.append(loss.item())
        return loss

    def by_step(self) -> list[float]:
        return [first + second for first, second in zip(self.values[::2], self.values[1::2], strict=True)]


def in_float64(trainer: Any) -> TrainerCallback:
    """TRL scores tokens by a kernel of its own in float32; here it takes the loss from us, and all else from itself."""
    exact = trainer.model.loss_function
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch: exact(
        outputs.logits, labels, num_items_in_batch
    )
    return TrainerCallback()


SETTINGS: dict[str, dict[str, Any]] = {"trl_sft": {"callbacks": [in_float64]}}


def make_model(name: str) -> Any:
    """Starcoder2 for the trainers: its layer norms stay in float64, where Llama's are computed in float32."""
    if name == "torchtitan_style":
        return example(name).make_model(96).double()
    model = tiny_model("starcoder2")
    model.loss_function = ExactLoss()
    return model


def measure(name: str, store: Path, *, packed: bool) -> tuple[list[float], float]:
    """The losses of an example and its CPU seconds, after a step that warms up."""
    train = functools.partial(example(name).train, packed=packed, **SETTINGS.get(name, {}))
    train(make_model(name), PackedDataset(store), steps=1)
    model, started = make_model(name), time.process_time()
    losses = train(model, PackedDataset(store), steps=STEPS)
    seconds = time.process_time() - started
    if name in {"hf_trainer", "trl_sft"}:
        exact = model.loss_function.by_step()
        torch.testing.assert_close(doubles(exact), doubles(losses), rtol=1e-6, atol=0)
        losses = exact
    return losses, seconds


@functools.cache
def padded_losses(name: str, store: Path) -> tuple[list[float], float]:
    return measure(name, store, packed=False)


def doubles(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def assert_equal_curves(packed: list[float], padded: list[float]) -> None:
    assert len(packed) == len(padded) == STEPS
    torch.testing.assert_close(doubles(packed), doubles(padded), rtol=TOLERANCE, atol=0)
    assert padded[-1] < padded[0] - 0.1, "the model learns, so the curves depend on every gradient before"


@pytest.mark.parametrize("name", NAMES)
def test_packed_rows_train_as_padded_samples_and_faster(
    name: str, store: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "torchrun_fsdp2":
        request.getfixturevalue("alone")
    padded, slow = padded_losses(name, store)
    packed, fast = measure(name, store, packed=True)
    assert_equal_curves(packed, padded)
    with capsys.disabled():
        sys.stdout.write(f"\n{name}: padded {slow:.2f} s, packed {fast:.2f} s of CPU, ratio {slow / fast:.2f}\n")
    assert slow > 1.1 * fast, "the padded arm computes several times as many slots"


def test_lightnings_own_averaging_is_undone(store: Path) -> None:
    """Its loop and Accelerate's take the same rows, as far as the first epoch goes; Lightning cuts it off there."""
    full = len(PackedDataset(store)) // 4
    lightning, accelerate = (doubles(padded_losses(name, store)[0][:full]) for name in ("lightning", "accelerate"))
    torch.testing.assert_close(lightning, accelerate, rtol=TOLERANCE, atol=0)


def test_the_micro_batches_are_unequal_so_a_mean_of_means_would_be_another_curve(store: Path) -> None:
    dataset = PackedDataset(TokenStore(store))
    counts = [batch.num_targets for batch in PackedLoader(RowSampler(dataset, rows=2, drop_last=True))]
    pairs = list(zip(counts[::2], counts[1::2], strict=False))
    assert max(abs(a - b) / (a + b) for a, b in pairs) > 0.01
    assert sum(counts) < 0.8 * dataset.plan.lengths.sum(), "prompts are no targets"


RANKS = 2


def rank_main(rank: int, port: int, store: str, out: str) -> None:
    sys.path.insert(0, str(EXAMPLES))
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "ACCELERATE_USE_CPU": "true"}
    dist.init_process_group("gloo")
    runs: dict[str, Callable[..., list[float]]] = {
        "torchrun_fsdp2": example("torchrun_fsdp2").train,
        "accelerate": example("accelerate").train,
        "hf_trainer": functools.partial(
            example("hf_trainer").train, per_device_train_batch_size=1, use_cpu=True, ddp_backend="gloo"
        ),
    }
    curves = {name: run(make_model(name), PackedDataset(store), packed=True, steps=STEPS) for name, run in runs.items()}
    if rank == 0:
        torch.save(curves, out)
    dist.barrier()
    # gloo's threads can abort an orderly exit of the interpreter; the result is on disk, so leave without one.
    os._exit(0)


def test_two_ranks_train_as_one_padded_process(store: Path, tmp_path: Path) -> None:
    mp.spawn(rank_main, args=(free_port(), str(store), str(tmp_path / "curves.pt")), nprocs=RANKS)
    curves = torch.load(tmp_path / "curves.pt")
    assert_equal_curves(curves["accelerate"], padded_losses("accelerate", store)[0])
    assert_equal_curves(curves["torchrun_fsdp2"], padded_losses("accelerate", store)[0])
    # The Trainer logs in float32, and repeats rows where those of an epoch do not fill the last step of all ranks; so
    # as far as the last full step, and as near as that.
    full = len(PackedDataset(store)) // 4
    assert full >= 10
    padded = padded_losses("hf_trainer", store)[0]
    torch.testing.assert_close(doubles(curves["hf_trainer"][:full]), doubles(padded[:full]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["accelerate", "torchrun_fsdp2"])
def test_an_example_runs_as_a_script(name: str, store: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"train_{name}.py", store],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    padded, packed = done.stdout.splitlines()
    assert padded.startswith("padded: loss ")
    assert packed.startswith("packed: loss ")
    assert padded.split(" in ")[0].removeprefix("padded") == packed.split(" in ")[0].removeprefix("packed")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
