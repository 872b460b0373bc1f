"""`padless simulate`: a table for people, JSON for machines, and one clear line for what cannot be."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from padless import TokenStore
from padless.training.scheduling import SCHEDULERS

Padless = Callable[..., tuple[int, str, str]]
SMALL = ["--ranks", 8, "--global-batch", 64, "--steps", 3]


def test_a_person_reads_one_line_per_schedule_and_what_the_columns_mean(padless: Padless) -> None:
    code, out, err = padless("simulate", "log-normal:200:1:4096", *SMALL, "--cp", 2)
    assert (code, err) == (0, "")
    assert "8 ranks = dp 4 x cp 2" in out
    assert "64 samples a step from log-normal:200:1:4096: mean " in out
    for name in SCHEDULERS:
        [line] = [line for line in out.splitlines() if line.startswith(name)]
        assert len(line.split()) == 9
    assert "idle:\n  waiting, of all ranks' time" in out
    assert max(map(len, out.splitlines())) <= 100


def test_json_has_every_figure_of_every_schedule(padless: Padless) -> None:
    code, out, err = padless("simulate", "log-normal:200:1:4096", *SMALL, "--pp", 2, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["cluster"] == {"ranks": 8, "dp": 4, "cp": 1, "pp": 2, "tp": 1}
    assert [made["strategy"] for made in found["schedules"]] == list(SCHEDULERS)
    by_name = {made["strategy"]: made for made in found["schedules"]}
    for made in by_name.values():
        assert made["steps"] == 3
        assert made["imbalance"] >= 1
        assert 0 <= made["idle"] < 1
        assert made["step_seconds"] > 0
        assert made["peak_bytes"] > 0
    assert by_name["dp-balanced"]["imbalance"] < by_name["megatron"]["imbalance"]
    assert found["seconds_per_squared_token"] > 0


def test_a_named_schedule_runs_alone_and_a_cost_may_be_given(padless: Padless) -> None:
    options = ["--schedule", "dp-balanced", "--cost", "0.001", "0", "--json"]
    _, out, _ = padless("simulate", "log-normal:200:1:4096", *SMALL, *options)
    [made] = json.loads(out)["schedules"]
    assert made["tokens_per_second"] * made["step_seconds"] == pytest.approx(made["step_seconds"] * 8000, rel=0.1)


@pytest.mark.parametrize("kind", ["npy", "store"])
def test_lengths_come_from_files_and_stores(kind: str, padless: Padless, tmp_path: Path) -> None:
    lengths = np.arange(1, 31)
    if kind == "npy":
        np.save(tmp_path / "data.npy", lengths)
        source = tmp_path / "data.npy"
    else:
        source = tmp_path / "store"
        TokenStore.write(source, [np.arange(n) % 7 for n in lengths], vocab_size=7)
    code, out, _ = padless("simulate", source, "--ranks", 2, "--global-batch", 30, "--steps", 2, "--json")
    assert code == 0
    assert json.loads(out)["lengths"] | {"source": ""} == {"source": "", "mean": 15.5, "median": 15.5, "longest": 30}


def test_the_same_seed_gives_the_same_figures(padless: Padless) -> None:
    def figures(seed: int) -> list[dict]:
        _, out, _ = padless("simulate", "long-tail", *SMALL, "--seed", seed, "--json")
        return [made | {"schedule_seconds": 0} for made in json.loads(out)["schedules"]]

    assert figures(1) == figures(1) != figures(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.npy"], "is not a file"),
        (["log-normal:1"], "expected log-normal:MEDIAN:SIGMA:LONGEST"),
        (["long-tail", "--ranks", 6, "--cp", 4], "give --ranks 4 or 8"),
        (["long-tail", "--schedule", "best"], "there are dp-balanced, megatron, dynamic-cp, wlb"),
        (["long-tail", "--model", "9b"], "there are 1b, 7b, 13b, 70b"),
        (["long-tail", "--tflops", 0], "above 0"),
        (["long-tail", "--sizes", "odd"], "'power-of-two' or 'free'"),
        (["long-tail", "--max-seqlen-per-rank", 512], "cut it, or give max_seqlen_per_rank"),
    ],
)
def test_what_cannot_be_simulated_is_said_in_one_line(arguments: list, message: str, padless: Padless) -> None:
    code, out, err = padless("simulate", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_seed_below_zero_is_refused(padless: Padless) -> None:
    code, out, err = padless("simulate", "long-tail", "--seed", -1)
    assert (code, out) == (2, "")
    assert "-1 is not in the range x>=0" in err


def test_a_schedule_that_cannot_run_is_a_footnote_when_all_were_asked_for(padless: Padless) -> None:
    code, out, _ = padless("simulate", "log-normal:200:1:4096", "--ranks", 8, "--global-batch", 2, "--steps", 1)
    assert code == 0
    assert "megatron: 2 samples cannot fill 8 bins" in out
    assert "empty micro-batches" in out
