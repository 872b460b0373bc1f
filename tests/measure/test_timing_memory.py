"""Taking turns, and a peak that neither an earlier run nor memory kept by the heap can hide."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from padless.errors import PadlessError
from padless.measure import interleaved, memory
from padless.measure.machine import machine


def test_ways_take_turns_there_and_back_and_the_clock_is_read_around_each() -> None:
    now, ran, waited = [0.0], [], []
    costs = {"a": 1.0, "b": 2.0, "c": 4.0}

    def way(name: str) -> Callable[[], None]:
        def run() -> None:
            ran.append(name)
            now[0] += costs[name]

        return run

    timings = interleaved(
        {name: way(name) for name in costs},
        repeats=3,
        synchronize=lambda: waited.append(len(ran)),
        clock=lambda: now[0],
    )
    assert "".join(ran) == "abccbaabc"
    assert {name: timing.seconds for name, timing in timings.items()} == {n: (c,) * 3 for n, c in costs.items()}
    assert waited == [n for run in range(9) for n in (run, run + 1)]
    assert timings["b"].spread == 0


def test_nothing_to_time_is_refused() -> None:
    for ways, repeats in (({}, 3), ({"a": lambda: None}, 0)):
        with pytest.raises(PadlessError, match="nothing to time"):
            interleaved(ways, repeats=repeats)


def test_a_small_run_after_a_large_one_does_not_inherit_its_peak() -> None:
    for numbers in (8_000_000, 1_000_000, 8_000_000):
        peak = memory.peak_memory(lambda numbers=numbers: np.ones(numbers).sum())
        assert peak == pytest.approx(8 * numbers, rel=0.25)


def test_a_run_cannot_hide_in_free_pages_of_the_heap() -> None:
    blocks = [np.ones(1000) for _ in range(8000)]  # small enough to come from the heap
    survivor = np.ones(1000)  # keeps the heap from shrinking by itself
    del blocks
    peak = memory.peak_memory(lambda: [np.ones(1000) for _ in range(8000)])
    assert survivor.sum() == 1000
    assert peak == pytest.approx(64e6, rel=0.25)


def test_a_peak_that_cannot_be_reset_is_not_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("statm", "status"):
        (tmp_path / name).write_text((memory.PROCESS / name).read_text())
    (tmp_path / "clear_refs").mkdir()  # nothing can be written to it
    monkeypatch.setattr(memory, "PROCESS", tmp_path)
    assert memory.peak_memory(lambda: None) is None


def test_where_the_system_cannot_tell_the_run_still_happens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "PROCESS", tmp_path / "absent")
    ran = []
    assert memory.peak_memory(lambda: ran.append(1)) is None
    assert ran == [1]


def test_the_machine_is_said_in_one_line() -> None:
    assert "\n" not in machine()
    assert "torch" in machine()
