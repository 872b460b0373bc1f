"""`padless audit`: exit codes, the table, JSON, the page, and what a user may get wrong."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from padless.corpus import TokenStore

MODELS = '''
import torch
from torch import nn


class Means(nn.Module):
    """Each token sees the mean of those before it; with a leak, of the whole row."""

    def __init__(self, leak):
        super().__init__()
        torch.manual_seed(0)
        self.leak, self.embed, self.head = leak, nn.Embedding(60, 16), nn.Linear(16, 60)

    def forward(self, input_ids, segment_ids=None):
        x = self.embed(input_ids[0])
        same = segment_ids[0][:, None] == segment_ids[0] if not self.leak else torch.ones(len(x), len(x), dtype=bool)
        weights = (same & torch.ones_like(same).tril()).to(x)
        return self.head(weights / weights.sum(1, keepdim=True) @ x)[None]


def right():
    return Means(leak=False)


def leaking():
    return Means(leak=True)


def broken():
    raise OSError("no weights here")


def number():
    return 7


def reversing(samples):
    return {"input_ids": torch.tensor([[t for s in samples for t in s["input_ids"][::-1]]])}
'''


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"models_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.fixture
def store(tmp_path: Path) -> Path:
    samples = [[5, 6, 7, 8, 2], [9, 10, 2], [11, 12, 13, 14, 15, 16, 17, 2], [18, 19, 20, 2]]
    TokenStore.write(tmp_path / "store", samples, vocab_size=60, eod_id=2)
    return tmp_path / "store"


def test_a_right_model_of_ones_own(padless, models: str) -> None:
    code, out, err = padless("audit", f"{models}:right")
    assert code == 0
    assert all(re.match(r"padless: \d+ s, \w+", line) for line in err.splitlines()), err  # on a slow machine
    assert "all that applies is proven" in out
    assert [line.split()[0] for line in out.splitlines() if " proven " in line][:2] == ["traps", "isolation"]


def test_a_leaking_model_exits_with_one_and_says_what_to_do(padless, models: str) -> None:
    code, out, _ = padless("audit", f"{models}:leaking")
    assert code == 1
    assert "no-segment-mask" in out
    assert "-> Give the attention its boundaries" in out


def test_json_and_page(padless, models: str, tmp_path: Path) -> None:
    code, out, _ = padless("audit", f"{models}:leaking", "--json", "--html", tmp_path / "report.html")
    picture = json.loads(out)
    assert code == picture["exit_code"] == 1
    assert "no-segment-mask" in (tmp_path / "report.html").read_text()


def test_quiet_says_it_by_the_exit_code(padless, models: str) -> None:
    assert padless("audit", f"{models}:right", "-q", "--checks", "isolation") == (0, "", "")


def test_explain(padless, models: str) -> None:
    _, out, _ = padless("audit", f"{models}:right", "--explain", "--checks", "isolation")
    assert "isolation: All tokens of one segment are replaced" in out


def test_what_cannot_be_decided_exits_with_three(padless, models: str) -> None:
    code, out, _ = padless("audit", f"{models}:right", "--collator", f"{models}:reversing")
    assert code == 3
    assert "undecided" in out


@pytest.mark.interop
def test_transformers_default_call_leaks_and_padless_does_not(padless) -> None:
    code, out, _ = padless("audit", "llama", "--random", "--checks", "traps,isolation,targets")
    assert code == 1
    assert "cache-disables-detection" in out
    for collator in ("padless", "transformers", "trl"):
        arguments = ("--random", "--no-cache", "--collator", collator, "--checks", "traps,isolation,targets")
        assert padless("audit", "llama", *arguments)[0] == 0, collator
    assert padless("audit", "llama", "--random", "--attn", "padless")[0] == 0


@pytest.mark.interop
def test_a_local_directory_with_fewer_layers(padless, tmp_path: Path) -> None:
    from padless.frameworks.tiny_models import tiny_model

    tiny_model("qwen2").save_pretrained(tmp_path / "model")
    options = ("--layers", 1, "--dtype", "bfloat16", "--no-cache", "--checks", "isolation,targets", "--json")
    code, out, _ = padless("audit", tmp_path / "model", *options)
    assert code == 0
    assert "Qwen2ForCausalLM" in json.loads(out)["subject"]


def test_a_store_alone(padless, store: Path) -> None:
    code, out, _ = padless("audit", "--data", store)
    assert code == 0
    assert "tokens" in out
    shard = next(store.glob("tokens-*"))
    shard.write_bytes(shard.read_bytes()[:-9] + b"tampered!")
    code, out, _ = padless("audit", "--data", store)
    assert code == 1
    assert "store-broken" in out


@pytest.mark.interop
def test_a_model_on_a_stores_samples(padless, store: Path) -> None:
    code, out, _ = padless("audit", "llama", "--random", "--attn", "padless", "--data", store, "--json")
    picture = json.loads(out)
    assert code == 0
    assert picture["settings"]["lengths"] == [5, 3, 8, 4]
    assert [r["name"] for r in picture["results"]][:2] == ["store: files", "store: counts"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give a MODEL, or --data STORE"),
        (("nowhere/model",), "no directory with a config.json"),
        (("nosuchmodule:f",), "expected module:function"),
        (("{models}:nosuch",), "expected module:function"),
        (("{models}:broken",), "fails with OSError: no weights here"),
        (("{models}:number",), "returned int; expected an nn.Module"),
        (("{models}:right", "--attn", "sdpa"), "builds its own model"),
        (("{models}:right", "--checks", "isolatoin"), "unknown checks isolatoin"),
        (("{models}:right", "--collator", "best"), "expected padless, transformers, trl or module:function"),
        (("{models}:right", "--dtype", "float33"), "no such torch dtype"),
        (("nollama", "--random"), "no tiny model of 'nollama'"),
    ],
)
def test_wrong_use_exits_with_two(padless, models: str, arguments: tuple[str, ...], message: str) -> None:
    code, _, err = padless("audit", *(a.format(models=models) for a in arguments))
    assert code == 2
    assert message in err


def test_the_pytest_fixture(models: str, tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        f"import {models} as models\n"
        "def test_right(audit_model):\n    assert audit_model(models.right()).exit_code == 0\n"
        "def test_leaking(audit_model):\n    audit_model(models.leaking())\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "padless.auditing.pytest_plugin", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "isolation: violated: changing segment" in done.stdout


def test_the_plugin_loads_without_torch() -> None:
    code = "import sys, padless.auditing.pytest_plugin; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
