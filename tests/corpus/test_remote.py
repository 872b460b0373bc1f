"""Object stores by URL: a file system in memory, and the local one under `file://`."""

import json
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

from padless import TokenStore, pack
from padless.corpus.remote import download, pack_remote, upload
from padless.corpus.request import PackRequest
from padless.corpus.verify import verify
from padless.durable import sha256_of
from padless.errors import PadlessError, ViolationError

SETTINGS = {"tokenizer": "bytes", "capacity": 64}


def lines_of(number: int) -> str:
    return "".join(json.dumps({"text": f"{number} {i} " + "x" * (7 * i % 40)}) + "\n" for i in range(40))


@pytest.fixture(params=["memory", "file"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A URL under which nothing lies yet."""
    if request.param == "file":
        (tmp_path / "bucket").mkdir()
        yield f"file://{tmp_path / 'bucket'}"
        return
    fs = fsspec.filesystem("memory")
    yield "memory://bucket"
    if fs.exists("/bucket"):
        fs.rm("/bucket", recursive=True)


def put(url: str, content: str | bytes) -> None:
    fs, path = fsspec.core.url_to_fs(url)
    fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
    fs.pipe_file(path, content.encode() if isinstance(content, str) else content)


def names_in(url: str) -> list[str]:
    fs, path = fsspec.core.url_to_fs(url)
    return sorted(name.removeprefix(path).lstrip("/") for name in fs.find(path))


@pytest.fixture
def filled(bucket: str) -> str:
    for number in range(3):
        put(f"{bucket}/in/{number}.jsonl", lines_of(number))
    return bucket


def tree(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {str(path.relative_to(folder)): sha256_of(path) for path in files}


def run(bucket: str, tmp_path: Path, output: str | None = None, inputs: str = "in/*.jsonl", **settings: object):
    place = Path(tmp_path / "unused")
    request = PackRequest(inputs=(f"{bucket}/{inputs}",), output=place, **{**SETTINGS, **settings})  # type: ignore[arg-type]
    return pack_remote(request, output or f"{bucket}/store", staging=tmp_path / "staging")


def local_store(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.jsonl").write_text(lines_of(number))
    pack(folder, output=tmp_path / "local", **SETTINGS)  # type: ignore[arg-type]
    return tmp_path / "local"


def test_a_store_travels_out_and_in_with_the_bytes_of_a_local_one(filled: str, tmp_path: Path) -> None:
    run(filled, tmp_path)
    assert "manifest.json" in names_in(f"{filled}/store")
    assert list((tmp_path / "staging").iterdir()) == [], "nothing stays on this machine"
    download(f"{filled}/store", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(local_store(tmp_path))
    assert not any(check.violations for check in verify(tmp_path / "back"))
    names = [entry.name for entry in TokenStore(tmp_path / "back").manifest.sources]
    assert [name.rsplit("/", 1)[1] for name in names] == ["0.jsonl", "1.jsonl", "2.jsonl"]
    assert all(name.startswith(filled.split("://", maxsplit=1)[0]) for name in names), (
        "the URLs, not the names of copies"
    )


def test_a_folder_and_a_local_output_do_as_well(filled: str, tmp_path: Path) -> None:
    put(f"{filled}/in/_SUCCESS", "")
    put(f"{filled}/in/README.md", "about the data")
    run(filled, tmp_path, str(tmp_path / "out"), inputs="in/")
    assert tree(tmp_path / "out") == tree(local_store(tmp_path))


def test_the_same_command_ends_at_once_and_another_is_refused(filled: str, tmp_path: Path) -> None:
    first = run(filled, tmp_path)
    assert run(filled, tmp_path).to_dict() == {**first.to_dict(), "seconds": 0.0, "tokens_per_second": 0.0}
    with pytest.raises(PadlessError, match="capacity was 64, now 32"):
        run(filled, tmp_path, capacity=32)


def stop_before_upload(filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that packs all and is interrupted before anything goes out."""
    from padless.corpus import remote

    monkeypatch.setattr(remote, "upload", lambda folder, url: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(filled, tmp_path)
    monkeypatch.undo()


def test_a_run_that_stopped_before_the_manifest_arrived_goes_on(
    filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_before_upload(filled, tmp_path, monkeypatch)
    assert names_in(f"{filled}/store") == []
    assert run(filled, tmp_path).seconds == 0, "nothing was packed a second time"
    download(f"{filled}/store", tmp_path / "back")
    assert not any(check.violations for check in verify(tmp_path / "back"))


def test_an_input_replaced_between_two_runs_is_not_taken_from_its_old_copy(
    filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_before_upload(filled, tmp_path, monkeypatch)
    put(f"{filled}/in/1.jsonl", lines_of(1).replace("x", "y"))  # as many bytes
    with pytest.raises(PadlessError, match=r"was made by another run: sources\[1\].sha256 was"):
        run(filled, tmp_path)


def test_a_place_that_cannot_be_written_is_said_and_the_store_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = local_store(tmp_path)
    with pytest.raises(PadlessError, match=r"cannot copy the store to file://.*it is whole in .*local"):
        upload(store, f"file://{tmp_path / 'file' / 'store'}")


def test_a_place_that_holds_something_else_is_left_alone(filled: str, tmp_path: Path) -> None:
    store = local_store(tmp_path)
    with pytest.raises(PadlessError, match="is not empty"):
        upload(store, f"{filled}/in")
    upload(store, f"{filled}/one")
    upload(store, f"{filled}/one")
    pack(tmp_path / "texts", output=tmp_path / "other", tokenizer="bytes", capacity=128)
    with pytest.raises(PadlessError, match="holds another store"):
        upload(tmp_path / "other", f"{filled}/one")


def test_what_arrives_damaged_is_noticed(filled: str, tmp_path: Path) -> None:
    upload(local_store(tmp_path), f"{filled}/store")
    fs, path = fsspec.core.url_to_fs(f"{filled}/store/tokens-00000.arrow")
    whole = fs.cat_file(path)
    put(f"{filled}/store/tokens-00000.arrow", whole[:-1] + b"?")
    with pytest.raises(ViolationError, match=r"tokens-00000.arrow is not the file"):
        download(f"{filled}/store", tmp_path / "back")
    fs.rm(path)
    with pytest.raises(ViolationError, match=r"tokens-00000.arrow is missing"):
        download(f"{filled}/store", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_an_index_brings_its_tokens_and_its_mask(bucket: str, tmp_path: Path) -> None:
    from padless.frameworks.export.indexed import write_index

    for name, dtype, values in (("x", "uint16", [5, 6, 7, 8]), ("x_loss_mask", "uint8", [0, 1, 0, 1])):
        write_index(tmp_path / "i.idx", np.dtype(dtype), np.array([2, 2]), np.array([0, 1, 2]))
        put(f"{bucket}/in/{name}.idx", (tmp_path / "i.idx").read_bytes())
        put(f"{bucket}/in/{name}.bin", np.array(values, dtype).tobytes())
    summary = run(bucket, tmp_path, str(tmp_path / "out"), inputs="in/", add_eod=False)
    assert (summary.samples, summary.tokens, summary.targets) == (2, 4, 2)


def test_what_cannot_be_is_said(bucket: str, tmp_path: Path) -> None:
    put(f"{bucket}/in/a.txt", "words")
    with pytest.raises(PadlessError, match="text documents are not read from URLs"):
        run(bucket, tmp_path, inputs="in/")
    with pytest.raises(PadlessError, match="no file matches"):
        run(bucket, tmp_path, inputs="none/*.jsonl")
    with pytest.raises(PadlessError, match="is not a padless store"):
        download(f"{bucket}/in", tmp_path / "back")
    with pytest.raises(PadlessError, match="copy the store first"):
        TokenStore(f"{bucket}/store")
    with pytest.raises(PadlessError, match="cannot reach"):
        download("nosuch://place", tmp_path / "back")
    request = PackRequest(inputs=(f"{bucket}/in",), output=tmp_path / "o", **SETTINGS)  # type: ignore[arg-type]
    with pytest.raises(PadlessError, match="shared file system with --staging"):
        pack_remote(request, str(tmp_path / "o"), engine=object())  # type: ignore[arg-type]


def test_the_command_takes_urls(filled: str, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from padless.cli.main import group

    arguments = ["pack", f"{filled}/in/*.jsonl", "-t", "bytes", "-c", "64", "-o", f"{filled}/store"]
    done = CliRunner().invoke(group, [*arguments, "--staging", str(tmp_path / "s")], env={"COLUMNS": "100"})
    assert done.exit_code == 0, done.output
    assert f"Wrote {filled}/store" in done.output
    assert "download(" in done.output
    with pytest.raises(PadlessError, match="leave URLs out"):
        CliRunner().invoke(group, [*arguments, "--plan-by", "part"], catch_exceptions=False)
