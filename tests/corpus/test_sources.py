"""Files to records: every format gives back what was written, wherever reading starts, and damage is told."""

import gzip
import io
import json
import pickle
import random
import re
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from padless.corpus.sources import (
    BadRecord,
    Record,
    Source,
    documents,
    find_sources,
    first_record,
    lines,
    read_raw,
    tables,
)
from padless.errors import PadlessError

FORMATS = ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet", "file.arrow", "stream.arrow")
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
records = st.lists(st.fixed_dictionaries({"text": texts, "n": st.lists(st.integers(0, 99), max_size=3)}), min_size=1)
quick = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of a few records, so that borders are everywhere."""
    for module in (lines, documents, tables):
        monkeypatch.setattr(module, "BATCH_BYTES", 64)
        monkeypatch.setattr(module, "BATCH_RECORDS", 3)


def write(path: Path, rows: list[dict]) -> Path:
    """One file of `rows` in the format that its name says."""
    if path.name.startswith("a.jsonl"):
        data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        if path.suffix == ".zst":
            with pa.OSFile(str(path), "wb") as raw, pa.CompressedOutputStream(raw, "zstd") as stream:
                stream.write(data)
        return path
    table = pa.table(
        {"text": [row["text"] for row in rows], "n": pa.array([row["n"] for row in rows], pa.list_(pa.int32()))}
    )
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=4)
    else:
        kind = pa.ipc.new_file if path.name.startswith("file") else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as sink, kind(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    return path


def read(path: Path, start: int = 0) -> list[Record | BadRecord]:
    [source] = find_sources([str(path)])
    return read_all(source, start)


def read_all(source: Source, start: int = 0) -> list[Record | BadRecord]:
    """All records, having checked that batches follow each other and survive a trip to another process."""
    out: list[Record | BadRecord] = []
    following = start + 1
    for batch in read_raw(source, start):
        assert batch.first == following
        following += batch.count
        found = pickle.loads(pickle.dumps(batch)).records()
        assert len(found) <= batch.count
        assert all(batch.first <= item.number < following for item in found)
        out += found
    return out


def plain(items: list[Record | BadRecord]) -> list[tuple[int, dict]]:
    """Numbers and fields, arrays as lists."""
    assert not any(isinstance(item, BadRecord) for item in items)
    return [
        (item.number, {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in item.fields.items()})
        for item in items
    ]


@pytest.mark.parametrize("name", FORMATS)
@quick
@given(rows=records, data=st.data())
def test_what_was_written_is_read_from_any_start(name: str, rows: list, data: st.DataObject, tmp_path, small_batches):
    path = write(tmp_path / name, rows)
    numbered = list(enumerate(rows, 1))
    assert plain(read(path)) == numbered
    start = data.draw(st.integers(1, len(rows)))
    assert plain(read(path, start)) == numbered[start:]


@quick
@given(data=st.binary(max_size=400))
def test_any_bytes_as_json_lines_lose_no_line(data: bytes, tmp_path, small_batches):
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    if not data:
        with pytest.raises(PadlessError, match="is empty"):
            read(path)
        return
    if data.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")):
        return
    rows = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    expected = [number for number, line in enumerate(rows, 1) if line and not line.isspace()]
    assert [item.number for item in read(path)] == expected


json_lines = st.one_of(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text() | st.integers(), lambda inner: st.lists(inner)
    ).map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=30).filter(lambda line: b"\n" not in line),
    st.dictionaries(texts, texts).map(lambda value: json.dumps(value).encode()),
)


@quick
@given(rows=st.lists(json_lines, min_size=1))
def test_json_lines_agree_with_the_json_module(rows: list[bytes], tmp_path, small_batches):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b" \n" + b"\n".join(rows))  # a first line that no compression begins with
    for item in read(path):
        line = rows[item.number - 2]
        try:
            value = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            value = None
        if isinstance(item, Record):
            assert item.fields == value
        else:
            assert item.where == f"{path.as_posix()}:{item.number}"
            lone_surrogate = b"\\ud" in line.lower()  # the json module takes it; no tokenizer can
            assert not isinstance(value, dict) or lone_surrogate or b"NaN" in line or b"Infinity" in line


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": ', "not valid JSON"),
        (b'{"text": "\xff"}', "not valid JSON"),
        (b'{"text": "\\ud800"}', "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1]", "expected a JSON object per line, found a list"),
        (b"null", "found null"),
        (b'"a"', "found a string"),
        (b"1" * 5000, "not valid JSON|found a number"),
    ],
)
def test_a_broken_line_is_told_and_the_others_are_read(line: bytes, reason: str, tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "one"}\r\n\n' + line + b'\n{"text": "four"}')
    first, bad, last = read(path)
    assert (first, last) == (Record(1, {"text": "one"}), Record(4, {"text": "four"}))
    assert isinstance(bad, BadRecord)
    assert bad.number == 3
    assert str(bad).startswith(f"{path.as_posix()}:3: ")
    assert re.search(reason, bad.reason)
    assert len(bad.excerpt) <= 160


def test_a_line_too_long_is_skipped_in_bounded_memory(tmp_path, monkeypatch, small_batches):
    monkeypatch.setattr(lines, "MAX_RECORD_BYTES", 200)
    for size in (150, 201, 1000):
        for tail in (b"", b"\n", b'\n{"text": "z"}', b'\n{"text": "z"}\n{"text": "y"}\n'):
            path = tmp_path / "a.jsonl"
            long = b'{"text": "' + b"x" * (size - 12) + b'"}'
            path.write_bytes(b'{"text": "a"}\n' + long + tail)
            found = read(path)
            assert [item.number for item in found] == list(range(1, 3 + tail.count(b"text")))
            assert isinstance(found[1], BadRecord) == (size > 200)
            assert read(path, 2) == found[2:]


def test_text_files_are_one_document_each(tmp_path, monkeypatch, small_batches):
    monkeypatch.setattr(documents, "MAX_RECORD_BYTES", 100)
    (tmp_path / "b").mkdir()
    contents = {
        "a.txt": b"first",
        "b/c.md": "\ufeffn\u00e9".encode(),
        "b/d.txt": b"\xff\xfe",
        "e.txt": b"x" * 101,
        "f.txt": b"",
    }
    contents["g.txt.gz"] = gzip.compress(b"packed")
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "README.md").write_text("about")
    (tmp_path / ".hidden.txt").write_text("hidden")
    (tmp_path / "picture.png").write_text("png")
    ignored: list[Path] = []
    [source] = find_sources([str(tmp_path)], on_ignored=ignored.append)
    assert source.files == tuple(contents)
    assert {path.name for path in ignored} == {"README.md", "picture.png"}
    found = read_all(source)
    assert [item.number for item in found] == [1, 2, 3, 4, 5, 6]
    read_texts = [item.fields["text"] if isinstance(item, Record) else item.where for item in found]
    folder = tmp_path.as_posix()
    assert read_texts == ["first", "n\u00e9", f"{folder}/b/d.txt", f"{folder}/e.txt", "", "packed"]
    assert read_all(source, 3) == found[3:]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet", "file.arrow", "stream.arrow"])
def test_a_file_cut_anywhere_is_refused(name: str, tmp_path: Path):
    whole = write(tmp_path / name, [{"text": f"text {i}", "n": [i]} for i in range(40)]).read_bytes()
    for size in sorted({*random.Random(0).sample(range(5, len(whole)), 60), len(whole) - 1, len(whole) - 8}):
        (tmp_path / name).write_bytes(whole[:size])
        with pytest.raises(PadlessError, match=f"{name}|damaged|cut short"):
            read(tmp_path / name)


@pytest.mark.parametrize("name", FORMATS[1:])
def test_a_flipped_byte_is_told_or_loses_no_row(name: str, tmp_path: Path):
    whole = write(tmp_path / name, [{"text": f"text {i}", "n": [i]} for i in range(40)]).read_bytes()
    dice = random.Random(1)
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        (tmp_path / name).write_bytes(data)
        try:
            found = read(tmp_path / name)
        except PadlessError:
            refused += 1
            continue
        assert len(found) >= 40 or any(isinstance(item, BadRecord) for item in found)
    assert refused


@quick
@given(
    data=st.binary(min_size=1, max_size=300), suffix=st.sampled_from([".parquet", ".arrow", ".jsonl.gz", ".jsonl.zst"])
)
def test_any_bytes_under_any_name_never_crash(data: bytes, suffix: str, tmp_path: Path):
    path = tmp_path / f"fuzz{suffix}"
    path.write_bytes(data)
    with pytest.raises(PadlessError):
        read(path)


def test_a_table_reads_only_what_is_asked_for_and_holds_odd_types(tmp_path: Path):
    path = tmp_path / "a.parquet"
    far = pa.array([2**60], pa.timestamp("us"))  # the year 38,503
    columns = {"text": pa.array(["a"]).dictionary_encode(), "when": far, "ids": pa.array([[1, None]])}
    pq.write_table(pa.table(columns), path)
    [source] = find_sources([path])
    [record] = read_all(source)
    assert record.fields["text"] == "a"
    assert record.fields["ids"] == [1, None]
    assert record.fields["when"] is None
    [batch] = read_raw(source, columns=["text"])
    assert batch.records() == [Record(1, {"text": "a"})]


def test_a_batch_of_a_large_arrow_file_carries_only_its_rows(tmp_path: Path):
    path = tmp_path / "a.arrow"
    table = pa.table({"text": ["x" * 1000] * 10_000})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    [source] = find_sources([path])
    sizes = [len(batch.payload) for batch in read_raw(source)]
    assert sum(sizes) < 1.1 * path.stat().st_size
    assert max(sizes) < 1.2 * tables.BATCH_BYTES


def test_columns_of_one_name_are_refused(tmp_path: Path):
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(PadlessError, match="more than one column named text"):
        read(tmp_path / "a.arrow")


def test_save_to_disk_folders_are_read_in_their_own_order(tmp_path: Path):
    import datasets

    datasets.disable_progress_bars()
    rows = [{"text": str(i), "n": [i]} for i in range(30)]
    data = datasets.Dataset.from_list(rows)
    data.save_to_disk(tmp_path / "one", num_shards=3)
    found = find_sources([tmp_path / "one"])
    assert len(found) == 3
    assert [row for source in found for _, row in plain(read_all(source))] == rows
    datasets.DatasetDict({"train": data, "test": data}).save_to_disk(tmp_path / "two")
    with pytest.raises(PadlessError, match=r"several splits \(test, train\)"):
        find_sources([tmp_path / "two"])


def test_the_order_is_as_typed_and_by_name_within(tmp_path: Path):
    for name in ("b.jsonl", "a.jsonl", "sub/c.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"text": "x"}')

    def names(*inputs: str) -> list[str]:
        return [source.path.name for source in find_sources([str(tmp_path / item) for item in inputs])]

    assert names("b.jsonl", "a.jsonl") == ["b.jsonl", "a.jsonl"]
    assert names("*.jsonl") == ["a.jsonl", "b.jsonl"]
    assert names("**/*.jsonl") == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert names(".") == ["a.jsonl", "b.jsonl", "c.jsonl"]
    with pytest.raises(PadlessError, match="named twice"):
        names(".", "sub/c.jsonl")


def test_inputs_that_cannot_be_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "blank.jsonl").write_text("\n \n")
    (tmp_path / "what.bin").write_text("?")
    (tmp_path / "folder").mkdir()
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "a.jsonl").write_text("{}")
    (tmp_path / "mixed" / "a.parquet").write_text("{}")
    for name, message in {
        "none.jsonl": "does not exist",
        "*.csv": "no file matches",
        "empty.jsonl": "is empty",
        "what.bin": r"no format that its name tells; accepted are \.jsonl",
        "folder": "a folder without data; accepted are",
        "mixed": r"mixes formats \(1 jsonl, 1 parquet files\)",
    }.items():
        with pytest.raises(PadlessError, match=message):
            find_sources([tmp_path / name])
    with pytest.raises(PadlessError, match="no input was named"):
        find_sources([])
    with pytest.raises(PadlessError, match="hold no record"):
        first_record(find_sources([tmp_path / "blank.jsonl"]))
    assert find_sources([tmp_path / "what.bin"], format="text")[0].files == ("what.bin",)
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "none.parquet")
    with pytest.raises(PadlessError, match="holds no record"):
        read(tmp_path / "none.parquet")
    [source] = find_sources([tmp_path / "blank.jsonl"])
    (tmp_path / "blank.jsonl").unlink()
    for act in (source.fingerprint, lambda: list(read_raw(source))):
        with pytest.raises(PadlessError, match="No such file"):
            act()
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(PadlessError, match="permission denied"):
        find_sources([tmp_path / "what.bin"])


def test_files_about_the_data_are_left_out_and_data_named_alike_is_not(tmp_path: Path):
    for name in ("states.jsonl", "notices.jsonl", "sources-1.jsonl", "state.json", "LICENSE.owner.txt", "README_zh.md"):
        (tmp_path / name).write_text('{"text": "x"}')
    ignored: list[Path] = []
    found = find_sources([tmp_path], on_ignored=ignored.append)
    assert [source.path.name for source in found] == ["notices.jsonl", "sources-1.jsonl", "states.jsonl"]
    assert len(ignored) == 3


def test_a_json_document_is_told_to_be_no_json_lines(tmp_path: Path):
    (tmp_path / "a.json").write_text(json.dumps([{"text": "x"}], indent=1))
    with pytest.raises(
        PadlessError, match=r"a\.json:1: not valid JSON: .*; a \.json file is read as one object per line"
    ):
        first_record(find_sources([tmp_path / "a.json"]))


def test_standard_input_is_kept_so_that_it_can_be_read_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    data = gzip.compress(b'{"text": "a"}\n{"text": "b"}\n')
    for given_bytes in (data, b'{"text": "a"}\n{"text": "b"}'):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given_bytes)))
        [source] = find_sources(["-"])
        assert source.name == "-"
        assert plain(read_all(source)) == plain(read_all(source)) == [(1, {"text": "a"}), (2, {"text": "b"})]
        assert source.fingerprint().bytes == len(given_bytes)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(PadlessError, match="standard input is empty"):
        find_sources(["-"])


def test_fingerprints_follow_content_and_names(tmp_path: Path):
    def identity() -> tuple[str, int, str]:
        [source] = find_sources([tmp_path])
        return source.fingerprint()

    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("two")
    first, again = identity(), identity()
    assert first == again
    assert first[:2] == (tmp_path.as_posix(), 6)
    (tmp_path / "b.txt").rename(tmp_path / "c.txt")
    renamed = identity()
    (tmp_path / "c.txt").write_text("owt")
    changed = identity()
    (tmp_path / "a.txt").write_text("oneo")
    (tmp_path / "c.txt").write_text("wt")
    assert len({first, renamed, changed, identity()}) == 4
