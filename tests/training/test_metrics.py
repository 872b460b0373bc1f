"""Metrics against naive counts, their warning, and both callbacks read back from TensorBoard."""

import itertools
import socket
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from padless import Batch, PackedDataset, TokenStore, collate
from padless.errors import PadlessError
from padless.training import Cost, PackedLoader, RowSampler
from padless.training.metrics import Facts, PackingMetrics, PaddingWarning

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ROWS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=4)


def batch_of(rows: list[list[int]], **options: Any) -> Batch:
    return collate([[np.arange(n) for n in row] for row in rows], **options)


@given(steps=st.lists(ROWS, min_size=1, max_size=3), align=st.sampled_from([1, 4]), torch_tensors=st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_numbers_are_what_counting_gives(steps: list[list[list[int]]], align: int, torch_tensors: bool) -> None:
    batches = [batch_of(rows, align=align) for rows in steps]
    cost = Cost(linear=3, quadratic=2)
    given_batches = [batch.torch() for batch in batches] if torch_tensors else batches
    found = PackingMetrics(capacity=40, cost=cost).step(given_batches, seconds=0.25)

    rows = [row for step in steps for row in step]
    tokens = sum(map(sum, rows))
    slots = sum(len(batch.input_ids) for batch in batches)
    pairs = sum(n * n for row in rows for n in row)
    assert found == pytest.approx(
        {
            "packing/padding": sum(int((batch.segment_ids == 0).sum()) for batch in batches) / slots,
            "packing/efficiency": tokens / (40 * len(rows)),
            "packing/segments_per_row": sum(map(len, rows)) / len(rows),
            "packing/rows": len(rows),
            "packing/tokens": tokens,
            "packing/targets": sum(int((batch.labels != -100).sum()) for batch in batches),
            "packing/pairs_fraction": pairs / sum(sum(row) ** 2 for row in rows),
            "packing/attention_fraction": 2 * pairs / (2 * pairs + 3 * tokens),
            "packing/imbalance": 1.0,
            "throughput/real_tokens_per_second": tokens / 0.25,
            "throughput/slots_per_second": slots / 0.25,
        }
    )
    assert all(type(value) is float for value in found.values()), "plain values, for any logger"


def test_static_batches_count_real_segments_only() -> None:
    found = Facts.of(batch_of([[3, 2]], static=(16, 6)))
    assert (found.segments, found.tokens, found.slots, found.pairs) == (2, 5, 16, 13)


def test_the_clock_runs_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 12.0, 16.0])
    monkeypatch.setattr("padless.training.metrics.time.perf_counter", lambda: next(now))
    metrics, batch = PackingMetrics(), batch_of([[8]])
    assert metrics.step(batch)["throughput/real_tokens_per_second"] == 4
    assert metrics.step(batch)["throughput/real_tokens_per_second"] == 2


def test_a_rising_padding_rate_warns_once_for_each_rise() -> None:
    metrics = PackingMetrics(capacity=10, window=4, rise=0.17)
    seen = []
    for length in [9] * 8 + [7] * 8 + [5] * 8:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            metrics.step(batch_of([[length]]), seconds=1)
        seen += [str(warning.message) for warning in caught if warning.category is PaddingWarning]
    assert len(seen) == 2
    assert "rose from 10.0% to 30.0%" in seen[0]
    assert "(mean of 4 steps)" in seen[0]


def test_a_falling_or_steady_rate_is_silent() -> None:
    metrics = PackingMetrics(capacity=10, window=2)
    for length in [5, 6, 7, 8, 8, 8]:
        metrics.step(batch_of([[length]]), seconds=1)


def test_nonsense_is_refused() -> None:
    with pytest.raises(PadlessError, match="window=0"):
        PackingMetrics(window=0)


def rank_main(rank: int, port: int, out: str) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    found = PackingMetrics(capacity=8, group=True).step(batch_of([[2], [6, 2]][rank : rank + 1]), seconds=1)
    torch.save(found, f"{out}.{rank}")
    dist.destroy_process_group()


@pytest.mark.slow
def test_ranks_are_summed_and_the_slowest_is_seen(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(rank_main, args=(port, str(tmp_path / "found")), nprocs=2)
    first, second = (torch.load(tmp_path / f"found.{rank}") for rank in range(2))
    assert first == second
    assert first["packing/tokens"] == 10
    assert first["packing/efficiency"] == 10 / 16
    assert first["packing/imbalance"] == pytest.approx(8 / 5)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Any]:
    """The examples' modules, and a store as they make it."""
    import importlib

    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: dict[str, list[tuple[int, float]]] = {}
    for events in folder.rglob("events.out.tfevents.*"):
        reader = EventAccumulator(str(events))
        reader.Reload()
        for tag in reader.Tags()["scalars"]:
            found.setdefault(tag, []).extend((event.step, event.value) for event in reader.Scalars(tag))
    return found


def assert_logged(found: dict[str, list[tuple[int, float]]], expected: list[Facts], *, prefix: str = "") -> None:
    """Each step's tokens, targets and efficiency, in order."""
    for name, want in {
        "packing/tokens": [facts.tokens for facts in expected],
        "packing/targets": [facts.targets for facts in expected],
        "packing/segments_per_row": [facts.segments / facts.rows for facts in expected],
        "packing/efficiency": [facts.tokens / facts.room for facts in expected],
        "packing/padding": [0.0 for _ in expected],
    }.items():
        got = [value for _, value in sorted(found[prefix + name])]
        np.testing.assert_allclose(got, want, rtol=1e-6, err_msg=name)
    assert len(found[prefix + "throughput/real_tokens_per_second"]) == len(expected)


def small_store(task: Callable[[str], Any], folder: Path) -> PackedDataset:
    return PackedDataset(TokenStore(task("training_task").write_store(str(folder), count=120, longest=64).path))


@pytest.mark.slow
@pytest.mark.interop
@pytest.mark.parametrize("name", ["hf_trainer", "trl_sft"])
def test_the_trainers_of_hugging_face_log_to_tensorboard(
    name: str, task: Callable[[str], Any], one_thread: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from padless.frameworks.tiny_models import tiny_model
    from padless.frameworks.transformers.callback import PackingCallback

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
    dataset = small_store(task, tmp_path / "store")
    task(f"train_{name}").train(
        tiny_model("llama"),
        dataset,
        packed=True,
        steps=3,
        callbacks=[lambda trainer: PackingCallback(trainer, capacity=64)],
        report_to="tensorboard",
        train_sampling_strategy="sequential",
        dataloader_num_workers=1,
    )
    expected = [Facts.of(dataset.__getitems__(range(step * 4, step * 4 + 4)), capacity=64) for step in range(3)]
    assert_logged(scalars(tmp_path / "logs"), expected, prefix="train/")


@pytest.mark.slow
@pytest.mark.interop
def test_lightning_logs_to_tensorboard(task: Callable[[str], Any], one_thread: None, tmp_path: Path) -> None:
    from lightning.pytorch.loggers import TensorBoardLogger

    from padless.frameworks.tiny_models import tiny_model

    dataset = small_store(task, tmp_path / "store")
    logger = TensorBoardLogger(tmp_path / "logs")
    task("train_lightning").train(
        tiny_model("llama"), dataset, packed=True, steps=3, logger=logger, log_every_n_steps=1
    )
    metrics = PackingMetrics(capacity=64)
    batches = list(itertools.islice(PackedLoader(RowSampler(dataset, rows=2, drop_last=True)), 6))
    assert_logged(scalars(tmp_path / "logs"), [metrics.facts(batches[i : i + 2]) for i in (0, 2, 4)])


def test_lightning_refuses_batches_that_do_not_say_where_rows_end() -> None:
    from padless.frameworks.lightning import PackingCallback

    with pytest.raises(PadlessError, match="apply the dialect in training_step"):
        PackingCallback().on_train_batch_end(None, None, None, {"input_ids": 1}, 0)  # type: ignore[arg-type]
