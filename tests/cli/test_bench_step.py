"""`padless bench step`, `regime` and `savings`: what they print, the JSON that a report reads, and what they refuse."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from padless.corpus import TokenStore
from padless.report.given import read_bench

Padless = Callable[..., tuple[int, str, str]]

MODEL = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

def model():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, use_cache=False,
    ))
"""
FAST = ("--model", "tiny_bench_model:model", "--repeats", 1, "--threads", 1, "--quiet")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "tiny_bench_model.py").write_text(MODEL)
    np.save(tmp_path / "lengths.npy", np.random.default_rng(0).integers(4, 40, 200))
    return tmp_path


def test_a_step_is_measured_and_explained(padless: Padless, folder: Path) -> None:
    code, out, _ = padless("bench", "step", "--data", "lengths.npy", "--samples", 6, "--length", 64, *FAST)
    assert code == 0
    for arm in ("padded", "dynamic", "dynamic, masked", "bucketed", "dense mask", "padless"):
        assert f"\n{arm} " in out
    assert "6 of the 200 samples of lengths.npy" in out
    assert "padded to 64 in batches of 4, packed into 256" in out
    assert "bound by" in out
    assert "- packing takes" in out


def test_its_json_is_what_a_report_reads(padless: Padless, folder: Path) -> None:
    options = ("--samples", 6, "--length", 64, "--batch", 2, "--savings", "--json")
    code, out, err = padless("bench", "step", "--data", "lengths.npy", *options, *FAST)
    assert code == 0, err
    (folder / "bench.json").write_text(out)
    bench = read_bench(folder / "bench.json")
    first, last = bench.arms[0], bench.arms[-1]
    assert (first.name, last.name) == ("padded", "padless")
    assert bench.ratio_of(first) == 1
    assert last.seconds
    assert first.seconds
    assert bench.ratio_of(last) == pytest.approx(first.seconds / last.seconds)
    assert bench.ideal_ratio is not None
    assert bench.ideal_ratio > 2
    assert [round(point.padding, 1) for point in bench.savings] == [0.0, 0.1, 0.2, 0.5, 0.8, 0.9]
    assert bench.regime is not None
    assert bench.regime.name in {"projections", "attention"}
    assert bench.regime.error is not None
    assert "float32" in bench.model
    assert bench.machine
    assert bench.date


def test_a_store_gives_its_own_tokens(padless: Padless, folder: Path) -> None:
    rng = np.random.default_rng(0)
    TokenStore.write("store", [rng.integers(0, 50, n).tolist() for n in (5, 9, 20)], vocab_size=50)
    code, out, err = padless("bench", "step", "--data", "store", *FAST)
    assert code == 0, err
    assert "3 of the 3 samples of store" in out
    TokenStore.write("other", [[1, 2, 3], [4, 70]], vocab_size=100)
    code, _, err = padless("bench", "step", "--data", "other", *FAST)
    assert code == 2
    assert "another tokenizer" in err


def test_the_regime_needs_no_arms(padless: Padless, folder: Path) -> None:
    code, out, _ = padless("bench", "regime", "--data", "lengths.npy", "--length", 64, *FAST)
    assert code == 0
    assert "bound by" in out
    assert "fitted to" in out
    code, out, _ = padless("bench", "regime", "--data", "lengths.npy", "--length", 64, "--json", *FAST)
    assert json.loads(out)["regime"]["advice"]


def test_the_savings_curve_stands_beside_the_reported_ends(padless: Padless, folder: Path) -> None:
    code, out, _ = padless("bench", "savings", "--length", 64, "--samples", 8, "--batch", 4, *FAST)
    assert code == 0
    assert "2.28%" in out
    assert "89.73%" in out
    assert "quadratic regime begins" in out


def test_samples_left_out_are_counted_and_wrong_use_is_said(padless: Padless, folder: Path) -> None:
    over = int((np.load("lengths.npy") > 20).sum())
    code, out, _ = padless("bench", "regime", "--data", "lengths.npy", "--length", 20, *FAST)
    assert code == 0
    assert f"({over} longer than 20" in out
    code, _, err = padless("bench", "regime", "--data", "lengths.npy", "--length", 3, *FAST)
    assert code == 2
    assert "no sample of lengths.npy" in err
    code, _, err = padless("bench", "step", "--data", "lengths.npy", "--model", "nothing")
    assert code == 2
    assert "llama-20m" in err


def test_help_lists_the_measurements_and_loads_nothing_heavy(padless: Padless) -> None:
    code, out, _ = padless("bench", "--help")
    assert code == 0
    for name in ("step", "regime", "savings", "attention"):
        assert f"  {name} " in out
