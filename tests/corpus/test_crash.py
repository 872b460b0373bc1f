"""Killing a pack at any moment loses nothing and duplicates nothing; the same command goes on (promise 10)."""

import json
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from padless.corpus.encoded import Position
from padless.corpus.job import pack
from padless.corpus.lock import exclusive
from padless.corpus.rejects import Rejects
from padless.errors import PadlessError

sys.path.insert(0, str(Path(__file__).parent))
from corpora import contents, write_jsonl


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Some 1,500 ragged records, every fortieth of them broken."""
    chance = random.Random(7)
    lines = []
    for number in range(1500):
        text = "".join(chance.choices("abcdefgh \n", k=chance.randint(1, 150)))
        lines.append("{broken" if number % 40 == 39 else json.dumps({"text": text + "."}))
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.slow
def test_sigkill_at_25_random_moments_and_between_any_two_steps(source: Path, tmp_path: Path) -> None:
    script = Path(__file__).with_name("killed_runs.py")
    folder = tmp_path / "runs"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(script), str(source), str(folder), "11"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["different"] == []
    assert seen["killed"] >= 30, seen  # of 50: the others were over, or not yet begun
    assert seen["resumable"] >= 10, seen


def test_the_same_command_again_changes_nothing(source: Path, tmp_path: Path) -> None:
    settings = {"tokenizer": "bytes", "capacity": 256, "output": tmp_path / "out", "on_bad_record": "skip"}
    first = pack(source, **settings)
    before = contents(tmp_path / "out")
    again = pack(source, **settings)
    assert contents(tmp_path / "out") == before
    assert {**again.to_dict(), "seconds": 0, "tokens_per_second": 0} == {
        **first.to_dict(),
        "seconds": 0,
        "tokens_per_second": 0,
    }


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"capacity": 300}, r"packing\.capacity was 256, now 300"),
        ({"tokenizer": "bytes", "add_eod": False}, r"encoding\.eod was True, now False"),
        ({"seed": 5}, r"packing\.seed was 0, now 5"),
        ({"shard_tokens": 999}, r"encoding\.shard_tokens was 67108864, now 999"),
    ],
)
def test_other_arguments_are_refused_with_the_difference(source, tmp_path, change, difference) -> None:
    settings = {"tokenizer": "bytes", "capacity": 256, "output": tmp_path / "out", "on_bad_record": "skip"}
    pack(source, **settings)
    before = contents(tmp_path / "out")
    with pytest.raises(PadlessError, match=difference):
        pack(source, **{**settings, **change})
    assert contents(tmp_path / "out") == before


def test_changed_inputs_are_refused(source: Path, tmp_path: Path) -> None:
    settings = {"tokenizer": "bytes", "capacity": 256, "output": tmp_path / "out", "on_bad_record": "skip"}
    pack(source, **settings)
    source.write_text(source.read_text() + "\n" + json.dumps({"text": "more"}))
    with pytest.raises(PadlessError, match=r"sources\[0\]\.bytes was .*, now .*sources\[0\]\.sha256 was"):
        pack(source, **settings)


def test_an_input_that_changes_while_it_is_read_is_refused(source: Path, tmp_path: Path) -> None:
    def touch(progress) -> None:
        if progress.phase == "packing":
            os.utime(source, ns=(1, 1))

    with pytest.raises(PadlessError, match="changed while it was being packed"):
        pack(source, tokenizer="bytes", capacity=256, output=tmp_path / "o", on_bad_record="skip", report=touch)
    assert not (tmp_path / "o").exists()


def _hold(folder: str, ready, done) -> None:
    with exclusive(Path(folder)):
        ready.set()
        done.wait(60)


def test_two_runs_into_one_folder_at_once(source: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    (tmp_path / "out").mkdir()
    other = context.Process(target=_hold, args=(str(tmp_path / "out"), ready, done))
    other.start()
    try:
        assert ready.wait(60)
        with pytest.raises(PadlessError, match=f"is being written by process {other.pid}"):
            pack(source, tokenizer="bytes", capacity=256, output=tmp_path / "out", on_bad_record="skip")
    finally:
        done.set()
        other.join(60)
    # The lock died with its holder.
    pack(source, tokenizer="bytes", capacity=256, output=tmp_path / "out", on_bad_record="skip")


def test_a_folder_with_other_things_in_it_is_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(PadlessError, match=r"not empty \(it holds thesis.tex\)"):
        pack(source, tokenizer="bytes", capacity=256, output=tmp_path / "out", on_bad_record="skip")
    assert contents(tmp_path / "out") == {"thesis.tex": b"years of work"}


def test_a_full_disk_leaves_whole_shards_only_and_the_same_command_goes_on(source: Path, tmp_path: Path) -> None:
    """A limit on file sizes stands in for the disk: writing beyond it fails as a full disk does."""
    settings = {"tokenizer": "bytes", "capacity": 4096, "on_bad_record": "skip", "shard_tokens": 8000}
    pack(source, output=tmp_path / "undisturbed", **settings)
    largest = max(len(data) for name, data in contents(tmp_path / "undisturbed").items() if name.startswith("tokens"))
    child = os.fork()
    if child == 0:
        import signal

        code = 3
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest - 1, largest - 1))
            pack(source, output=tmp_path / "out", **settings)
        except PadlessError as error:
            code = 0 if "cannot write" in str(error) and "run the same command again" in str(error) else 4
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    if (tmp_path / "out").exists():
        left = set(contents(tmp_path / "out"))
        assert "manifest.json" not in left
        assert not any("unfinished" in name for name in left)
    pack(source, output=tmp_path / "out", **settings)
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "d.jsonl", [{"text": "x" * n} for n in (3, 5, 400)])
    with pytest.raises(PadlessError, match="longer than a row of 64 tokens"):
        pack(source, tokenizer="bytes", capacity=64, output=tmp_path / "out", shard_tokens=4)
    assert not (tmp_path / "out").exists()


DIES_AMONG_WORKERS = """
import multiprocessing, os, signal
from padless.corpus import encoded

with encoded._executor(2, None) as submit:
    waiting = [submit(0, None) for _ in range(8)]
    [future.exception() for future in waiting]
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _lives(process: str) -> bool:
    try:
        return Path("/proc", process, "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_workers_end_when_their_run_is_killed() -> None:
    done = subprocess.run([sys.executable, "-c", DIES_AMONG_WORKERS], capture_output=True, text=True, check=False)
    workers = done.stdout.split()
    assert workers, done.stderr
    deadline = time.monotonic() + 20
    while any(map(_lives, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_lives, workers))


def test_what_was_rejected_survives_a_kill_while_a_run_takes_up_its_work(tmp_path: Path, monkeypatch) -> None:
    part = tmp_path / "rejected.jsonl.part"
    part.write_text('{"source": 0, "record": 3}\n{"source": 0, "record": 9}\n')

    def kill(*arguments) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", kill)
    with pytest.raises(KeyboardInterrupt):
        Rejects(tmp_path, Position(0, 5))
    monkeypatch.undo()
    rejects = Rejects(tmp_path, Position(0, 5))
    assert rejects.count == 1
    assert part.read_text() == '{"source": 0, "record": 3}\n'
    rejects.close()
