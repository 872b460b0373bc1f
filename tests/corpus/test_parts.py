"""Parts: where shards are cut so that they can be made anywhere, and stores that are planned apart."""

import hashlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from padless import TokenStore, pack
from padless.cli.main import group
from padless.corpus.job import look
from padless.corpus.part_stores import pack_parts
from padless.corpus.parts import part_numbers, parts_of
from padless.corpus.request import PackRequest
from padless.corpus.sources import find_sources
from padless.corpus.verify import verify
from padless.errors import PadlessError
from padless.lengths import LengthHistogram


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number, lines in enumerate([30, 1, 50, 5, 5, 40]):
        rows = [json.dumps({"text": f"{number} {i} " + "x" * (7 * i % 50)}) for i in range(lines)]
        (folder / f"{number}.jsonl").write_text("\n".join(rows))
    return folder


def request_of(inputs: Path, output: Path, **settings: object) -> PackRequest:
    return PackRequest(inputs=(str(inputs),), tokenizer="bytes", capacity=64, output=output, **settings)  # type: ignore[arg-type]


def test_a_part_ends_with_the_file_that_fills_it(inputs: Path) -> None:
    sources = find_sources([inputs])
    sizes = [source.path.stat().st_size for source in sources]
    assert part_numbers(sources, None) == [0] * 6
    assert part_numbers(sources, 1) == [0, 1, 2, 3, 4, 5]
    assert part_numbers(sources, sizes[0] + 1) == [0, 0, 1, 2, 2, 2]
    assert parts_of(sources, sizes[0] + 1) == [range(2), range(2, 3), range(3, 6)]


@pytest.mark.parametrize("workers", [1, 2])
def test_no_shard_holds_samples_of_two_parts(inputs: Path, tmp_path: Path, workers: int) -> None:
    pack(inputs, tokenizer="bytes", capacity=64, output=tmp_path / "s", part_bytes=1500, workers=workers)
    store = TokenStore(tmp_path / "s")
    parts = part_numbers(find_sources([inputs]), 1500)
    sources = [set(store._shard(i).sources.tolist()) for i in range(len(store.manifest.shards))]
    assert all(len({parts[source] for source in shard}) == 1 for shard in sources)
    assert len(sources) == max(parts) + 1
    assert store.manifest.encoding.part_bytes == 1500
    assert not any(check.violations for check in verify(tmp_path / "s"))


def test_without_parts_a_manifest_says_nothing_of_them(inputs: Path, tmp_path: Path) -> None:
    """So stores that were written before there were parts keep their digest."""
    pack(inputs, tokenizer="bytes", capacity=64, output=tmp_path / "s")
    assert "part_bytes" not in (tmp_path / "s" / "manifest.json").read_text()


def test_stores_of_parts_are_those_that_pack_makes_and_their_cost_is_known(inputs: Path, tmp_path: Path) -> None:
    made = pack_parts(request_of(inputs, tmp_path / "out", part_bytes=500))
    parts = parts_of(look(request_of(inputs, tmp_path / "x"), lambda line: None).sources, 500)
    assert len(made.stores) == len(parts) > 2
    rows = 0
    for name, own in zip(made.stores, parts, strict=True):
        files = [str(inputs / f"{number}.jsonl") for number in own]
        alone = pack(files, tokenizer="bytes", capacity=64, output=tmp_path / name)
        rows += alone.rows
        for path in (tmp_path / name).iterdir():
            assert digest(path) == digest(tmp_path / "out" / name / path.name)
    whole = pack(inputs, tokenizer="bytes", capacity=64, output=tmp_path / "whole")
    assert (made.rows, made.rows_together) == (rows, whole.rows)
    assert made.cost == pytest.approx(rows / whole.rows - 1)
    assert made.cost > 0
    assert LengthHistogram.load(tmp_path / "out" / "lengths.npz").tokens == whole.tokens == made.tokens


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_parts_that_are_done_are_not_made_again(inputs: Path, tmp_path: Path) -> None:
    (inputs / "6.jsonl").write_text("no JSON\n")
    request = request_of(inputs, tmp_path / "out", part_bytes=1)
    with pytest.raises(PadlessError, match=r"6.jsonl:1"):
        pack_parts(request)
    assert not (tmp_path / "out" / "parts.json").exists()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("tokens-*")}
    assert len(before) == 6
    (inputs / "6.jsonl").write_text('{"text": "mended"}\n')
    assert len(pack_parts(request).stores) == 7
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())


def test_the_command_prints_what_planning_apart_costs(inputs: Path, tmp_path: Path) -> None:
    arguments = ["pack", str(inputs), "-t", "bytes", "-c", "64", "--plan-by", "part", "--part-bytes", "1500"]
    run = CliRunner().invoke(group, [*arguments, "-o", str(tmp_path / "a"), "--json"])
    found = json.loads(run.stdout)
    assert found["rows"] > found["rows_together"]
    run = CliRunner().invoke(group, [*arguments, "-o", str(tmp_path / "b")])
    more = found["rows"] - found["rows_together"]
    assert f"One plan over all of them would have {found['rows_together']:,}: {more} rows more" in run.stdout


def test_an_address_without_the_engine_is_refused(inputs: Path, tmp_path: Path) -> None:
    arguments = ["pack", str(inputs), "-t", "bytes", "-c", "64", "-o", str(tmp_path / "a"), "--address", "there:1"]
    with pytest.raises(PadlessError, match="names a Ray cluster"):
        CliRunner().invoke(group, arguments, catch_exceptions=False)
