"""`padless pack`: what it prints, what it refuses and in which words, what it leaves behind."""

import contextlib
import gzip
import io
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

Padless = Callable[..., tuple[int, str, str]]

KEYS = [
    "samples",
    "tokens",
    "targets",
    "eod_tokens",
    "rejected_records",
    "rows",
    "capacity",
    "efficiency",
    "padding_before",
    "tail_padding",
    "alignment_padding",
    "truncated_samples",
    "truncated_tokens",
    "split_samples",
    "dropped_samples",
    "dropped_tokens",
    "lower_bound",
    "gap",
    "seconds",
    "tokens_per_second",
]


def jsonl(path: Path, *records: object) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records), encoding="utf-8")
    return path


def test_json_has_the_documented_keys_and_counts(padless: Padless, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "d.jsonl", {"text": "abcd"}, {"text": "ef"}, {"text": "g" * 20})
    code, out, err = padless(
        "pack", source, "-t", "bytes", "-c", 8, "-o", tmp_path / "out", "--oversize", "split", "--json"
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert sorted(found) == sorted(KEYS)
    assert {key: found[key] for key in KEYS[:-2]} == {
        "samples": 3,
        "tokens": 5 + 3 + 21,
        "targets": 4 + 2 + 20,
        "eod_tokens": 3,
        "rejected_records": 0,
        "rows": 4,
        "capacity": 8,
        "efficiency": 29 / 32,
        "padding_before": 1 - 29 / 40,
        "tail_padding": 3,
        "alignment_padding": 0,
        "truncated_samples": 0,
        "truncated_tokens": 0,
        "split_samples": 1,
        "dropped_samples": 0,
        "dropped_tokens": 0,
        "lower_bound": 4,
        "gap": 0.0,
    }


def test_the_summary_says_what_was_found_what_was_cut_and_what_comes_next(padless: Padless, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "d.jsonl", {"text": "abcd"}, {"text": "g" * 20}, "{", {"text": ""})
    code, out, _ = padless(
        "pack", source, "-t", "bytes", "-c", 8, "-o", tmp_path / "out", "--oversize", "truncate",
        "--on-bad-record", "skip",
    )  # fmt: skip
    assert code == 0
    assert "1 jsonl file, records of text (text), targets: all, tokenizer bytes (257 tokens)\n" in out
    assert "Cut: 1 samples lost 13 tokens at their end (the store keeps them; no EOD was put in their place)" in out
    assert "Rejected: 2 records, each with its reason in rejected.jsonl" in out
    assert f"padless verify {tmp_path / 'out'}" in out
    rejected = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert [(line["record"], line["where"]) for line in rejected] == [(3, f"{source}:3"), (4, f"{source}:4")]
    assert all(line["reason"] for line in rejected)


def test_quiet_prints_nothing(padless: Padless, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "d.jsonl", {"text": "abcd"})
    assert padless("pack", source, "-t", "bytes", "-c", 8, "-o", tmp_path / "out", "-q") == (0, "", "")


def refused(padless: Padless, tmp_path: Path, *arguments: object) -> str:
    """The one line that a refusal prints; nothing may be left behind."""
    before = sorted(tmp_path.rglob("*"))
    code, out, err = padless("pack", *arguments, "-o", tmp_path / "out")
    assert code == 2
    assert err.startswith("padless: ")
    assert err.count("\n") == 1
    assert "Traceback" not in out + err
    assert sorted(tmp_path.rglob("*")) == before
    return err


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ("{broken", ["d.jsonl:2", "not valid JSON"]),
        ("[1, 2]", ["d.jsonl:2"]),
        ({"text": 5}, ["d.jsonl:2", "text"]),
        ({"body": "x"}, ["d.jsonl:2", "text"]),
        ({"text": ""}, ["d.jsonl:2", "empty"]),
        ({"text": None}, ["d.jsonl:2", "text"]),
    ],
)
def test_a_bad_record_ends_the_run_with_its_file_line_and_reason(padless, tmp_path, record, words) -> None:
    source = jsonl(tmp_path / "d.jsonl", {"text": "fine"}, record, {"text": "fine"})
    line = refused(padless, tmp_path, source, "-t", "bytes", "-c", 64)
    for word in [*words, "--on-bad-record skip"]:
        assert word in line


def test_invalid_utf8(padless: Padless, tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_bytes(b'{"text": "fine"}\n{"text": "\xff\xfe"}\n')
    line = refused(padless, tmp_path, tmp_path / "d.jsonl", "-t", "bytes", "-c", 64)
    assert "d.jsonl:2" in line
    assert "UTF-8" in line or "utf-8" in line


def test_unknown_shape_lists_what_was_seen_and_what_would_be_accepted(padless: Padless, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "d.jsonl", {"headline": "x", "story": "y"})
    line = refused(padless, tmp_path, source, "-t", "bytes", "-c", 64)
    for word in ("headline", "story", "text", "messages", "prompt", "completion", "input_ids"):
        assert word in line


def test_empty_inputs(padless: Padless, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    assert "empty" in refused(padless, tmp_path, tmp_path / "empty.jsonl", "-t", "bytes", "-c", 64)
    (tmp_path / "folder").mkdir()
    assert "folder without data" in refused(padless, tmp_path, tmp_path / "folder", "-t", "bytes", "-c", 64)
    assert "does not exist" in refused(padless, tmp_path, tmp_path / "no.jsonl", "-t", "bytes", "-c", 64)
    assert "no file matches" in refused(padless, tmp_path, tmp_path / "*.parquet", "-t", "bytes", "-c", 64)


def test_wrong_settings(padless: Padless, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "d.jsonl", {"text": "abc"})
    assert "capacity 1 is too small" in refused(padless, tmp_path, source, "-t", "bytes", "-c", 1)
    assert "align 16 is larger than the capacity 8" in refused(
        padless, tmp_path, source, "-t", "bytes", "-c", 8, "--align", 16
    )
    assert "no/such" in refused(padless, tmp_path, source, "-t", "no/such/tokenizer.json", "-c", 8)
    assert "do not go with records of text" in refused(
        padless, tmp_path, source, "-t", "bytes", "-c", 8, "--targets", "assistant"
    )
    assert "chat template" in refused(
        padless, tmp_path, source, "-t", "bytes", "-c", 8, "--chat-template", "nope.jinja"
    )


def test_a_tokenizer_without_eod(padless: Padless, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?")).save(str(tmp_path / "t.json"))
    source = jsonl(tmp_path / "d.jsonl", {"text": "a"})
    line = refused(padless, tmp_path, source, "-t", tmp_path / "t.json", "-c", 8)
    assert "has no EOD token" in line


def test_token_ids_outside_the_vocabulary(padless: Padless, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "d.jsonl", {"input_ids": [1, 2, 3]}, {"input_ids": [1, 300]})
    line = refused(padless, tmp_path, source, "-t", "bytes", "-c", 8)
    assert "d.jsonl:2" in line
    assert "300, outside the vocabulary of bytes (0 to 256)" in line


def test_oversize_names_the_options_and_the_first_five(padless: Padless, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "d.jsonl", *({"text": "x" * n} for n in (3, 30, 4, 31, 32, 33, 34, 35)))
    line = refused(padless, tmp_path, source, "-t", "bytes", "-c", 16)
    for number, length in ((2, 31), (4, 32), (5, 33), (6, 34), (7, 35)):
        assert f"d.jsonl:{number} ({length} tokens)" in line
    assert "d.jsonl:8" not in line
    for option in ("--oversize truncate", "split", "drop", "--capacity"):
        assert option in line


def test_unreadable_files(padless: Padless, tmp_path: Path) -> None:
    """Root reads everything, so as root the test becomes somebody else for a moment."""
    with tempfile.TemporaryDirectory() as elsewhere:
        folder = Path(elsewhere)
        folder.chmod(0o755)
        source = jsonl(folder / "d.jsonl", {"text": "a"})
        source.chmod(0)
        me = os.geteuid()
        if me == 0:
            os.seteuid(65534)
        try:
            code, _, err = padless("pack", source, "-t", "bytes", "-c", 8, "-o", folder / "out")
        finally:
            os.seteuid(me)
    assert code == 2
    assert f"cannot read {source}: Permission denied" in err
    assert err.count("\n") == 1


def test_an_unwritable_place(padless: Padless, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "d.jsonl", {"text": "abc"})
    (tmp_path / "file").write_text("in the way")
    code, _, err = padless("pack", source, "-t", "bytes", "-c", 8, "-o", tmp_path / "file" / "out")
    assert code == 2
    assert err.count("\n") == 1
    assert "Not a directory" in err


def test_every_format_gives_the_same_tokens(padless: Padless, tmp_path: Path, monkeypatch, capsys) -> None:
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    from padless import TokenStore

    texts = [f"line {n} " + "x" * (n % 7) for n in range(50)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    (tmp_path / "plain.jsonl").write_bytes(lines)
    (tmp_path / "zipped.jsonl.gz").write_bytes(gzip.compress(lines))
    with pa.CompressedOutputStream(str(tmp_path / "zipped.jsonl.zst"), "zstd") as out:
        out.write(lines)
    table = pa.table({"text": texts})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=7)
    with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=9)
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(str(tmp_path / "hf"))
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "texts" / f"{number:03}.txt").write_text(text)
    capsys.readouterr()  # datasets shows a bar
    inputs = ["plain.jsonl", "zipped.jsonl.gz", "zipped.jsonl.zst", "t.parquet", "t.arrow", "hf", "texts", "-"]
    found = []
    for number, name in enumerate(inputs):
        if name == "-":
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
        source = name if name == "-" else tmp_path / name
        code, _, err = padless("pack", source, "-t", "bytes", "-c", 64, "-o", tmp_path / f"out{number}", "-q")
        assert (code, err) == (0, ""), name
        store = TokenStore(tmp_path / f"out{number}")
        found.append(np.concatenate([sample.input_ids for sample in store]).tolist())
        assert store.source_of(49)[1] == 50
        of_folder = {"texts": "texts/049.txt", "hf": "hf/data-00000-of-00001.arrow"}
        assert store.source_of(49)[0] == (str(tmp_path / of_folder[name]) if name in of_folder else str(source))
    assert all(tokens == found[0] for tokens in found)


def test_progress_is_a_log_line_now_and_then_where_there_is_no_terminal(padless, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("padless.cli._progress.EVERY", 0.0)
    source = jsonl(tmp_path / "d.jsonl", *({"text": "abc"} for _ in range(10)))
    _, _, err = padless("pack", source, "-t", "bytes", "-c", 64, "-o", tmp_path / "out")
    lines = [line for line in err.splitlines() if line.startswith("padless: ")]
    assert [line.split(", ", 1)[1] for line in lines] == [
        "hashing the inputs",
        "packing 99% 10 samples, 40 tokens",
        "planning rows 10 samples, 40 tokens",
    ]


@pytest.mark.slow
def test_an_interrupt_leaves_a_state_that_the_same_command_goes_on_from(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "d.jsonl", *({"text": "abc" * (n % 50 + 1)} for n in range(60_000)))
    command = [
        sys.executable, "-m", "padless", "pack", str(source), "-t", "bytes", "-c", "512", "-o", str(tmp_path / "out"),
    ]  # fmt: skip
    running = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A suite that was started in the background has inherited a deaf ear for SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until = time.monotonic() + 60
    while not (tmp_path / "out" / "job.json").exists() and time.monotonic() < until:
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert err.strip().splitlines()[-1] == "padless: interrupted; the same command goes on where this one stopped"
    assert not list((tmp_path / "out").glob("*unfinished*"))
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["counts"]["samples"] == 60_000


def test_on_a_terminal_there_is_a_bar_and_it_leaves_the_results_alone(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "d.jsonl", *({"text": "abc" * 50} for _ in range(20_000)))
    terminal, end = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "padless", "pack", source, "-t", "bytes", "-c", "512", "-o", tmp_path / "out"],
        stdout=subprocess.PIPE,
        stderr=end,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        check=False,
    )
    os.close(end)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal is gone when all was read
        while part := os.read(terminal, 65536):
            shown += part
    os.close(terminal)
    assert done.returncode == 0, shown
    assert b"packing" in shown
    assert b"targets: all, tokenizer bytes" in shown
    assert b"20,000 samples" in done.stdout
    assert b"\x1b" not in done.stdout


def test_an_output_inside_the_input_folder_is_not_input(padless: Padless, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    jsonl(tmp_path / "data" / "d.jsonl", {"text": "abc"})
    command = ["pack", tmp_path / "data", "-t", "bytes", "-c", 8, "-o", tmp_path / "data" / "out", "-q"]
    assert padless(*command) == (0, "", "")
    assert padless(*command) == (0, "", "")
    code, _, err = padless("pack", tmp_path / "data" / "out", "-t", "bytes", "-c", 8, "-o", tmp_path / "x")
    assert code == 2
    assert "is a padless store already" in err


def test_what_would_be_left_out_silently_is_refused(padless: Padless, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    source = jsonl(tmp_path / "data" / "d.jsonl", {"text": "abc"})
    (tmp_path / "data" / "gone.jsonl").symlink_to("nowhere.jsonl")
    assert "points to nowhere.jsonl, which is not there" in refused(
        padless, tmp_path, tmp_path / "data", "-t", "bytes", "-c", 8
    )
    assert "an input is the empty string" in refused(padless, tmp_path, "", "-t", "bytes", "-c", 8)
    assert "EOD is switched off" in refused(padless, tmp_path, source, "-t", "bytes", "-c", 8, "--no-eod", "--eod", "1")


def test_an_eos_that_the_vocabulary_lacks_is_no_reason_to_guess(padless: Padless, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    (tmp_path / "t").mkdir()
    Tokenizer(models.WordLevel({"a": 0, "?": 1, "</s>": 2}, unk_token="?")).save(str(tmp_path / "t" / "tokenizer.json"))
    (tmp_path / "t" / "tokenizer_config.json").write_text('{"eos_token": "</nope>"}')
    source = jsonl(tmp_path / "d.jsonl", {"text": "a"})
    line = refused(padless, tmp_path, source, "-t", tmp_path / "t", "-c", 8)
    assert "(--eod TOKEN)" in line


def test_eod_inside_samples_is_counted(padless: Padless, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "d.jsonl", {"input_ids": [1, 256, 2]})
    _, out, _ = padless("pack", source, "-t", "bytes", "-c", 8, "-o", tmp_path / "out")
    assert "1 EOD stand inside samples" in out
