"""Object stores: inputs fetched from them, and stores copied to and from them (`s3://`, `gs://`, `memory://`, ...).

An object store has no locks, no renames and no memory map, so work happens in a folder of this machine, the staging:

- inputs are copied there before they are read: they are hashed and read, and read again when a run goes on;
- a store is made there and copied out when it is whole, its manifest last, so that what has a manifest is complete;
- to read a store it is copied in, and every file is held to the hash in its manifest.

A run that was killed finds its staging again by the URL that it writes to. Who writes there is for the user to see to:
two runs with one URL on two machines know nothing of each other.
"""

import dataclasses
import hashlib
import posixpath
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from padless.corpus.engine import Engine, Report, Say
from padless.corpus.job import Given, look, run
from padless.corpus.manifest import MANIFEST, FileEntry, Manifest, read_manifest
from padless.corpus.request import PackRequest
from padless.corpus.sources.find import data_format_of
from padless.corpus.sources.indexed import mask_of
from padless.corpus.summary import Summary
from padless.durable import UNFINISHED, sha256_of
from padless.errors import PadlessError, ViolationError, require

__all__ = ["download", "is_url", "pack_remote", "upload"]


def is_url(place: str) -> bool:
    """Whether a place is named by a URL and not by a path."""
    return "://" in place


def pack_remote(
    request: PackRequest,
    output: str,
    *,
    staging: Path | None = None,
    report: Report = lambda progress: None,
    say: Say = lambda line: None,
    engine: Engine | None = None,
) -> Summary:
    """`padless.corpus.job.run`, where inputs, the output or both are URLs.

    Args:
        request: What was asked for; its inputs may be URLs, globs in them too, and its `output` is not looked at.
        output: A URL, or a folder.
        staging: Where on this machine the work is done, in a folder named by the output; `~/.cache/padless` unless
            given.
        report: Called with `Progress`.
        say: Called with one line each about what was found.
        engine: Who packs. A cluster needs a staging that all its nodes see.

    Raises:
        PadlessError: As `run`; for text documents by URL; when the URL holds another store.
        MissingExtraError: Without fsspec.
    """
    if engine is not None and staging is None:
        raise PadlessError(
            "the workers of a cluster do not see this machine's folders, and inputs and stores pass through one; name "
            "a folder on a shared file system with --staging"
        )
    place = (staging or Path.home() / ".cache" / "padless") / hashlib.sha256(output.encode()).hexdigest()[:16]
    work = place / "store" if is_url(output) else Path(output)
    place.mkdir(parents=True, exist_ok=True)
    if is_url(output):
        _join_finished(output, work)
    local = _fetch_inputs(request.inputs, place / "inputs", say)
    staged = dataclasses.replace(request, inputs=tuple(str(path) for path in local), output=work)
    given = _named(look(staged, say), local)
    summary = run(staged, report=report, say=say, engine=engine, given=given)
    if is_url(output):
        upload(work, output)
    shutil.rmtree(place)
    return summary


def upload(folder: Path, url: str) -> None:
    """Copy a finished store to a URL, its manifest last, and check the size of every file there.

    Raises:
        PadlessError: When the folder is no store, another one lies there, or the place cannot be written.
        ViolationError: When a file did not arrive whole.
    """
    manifest = read_manifest(folder)
    fs, root = _filesystem(url)
    try:
        _refuse_other(fs, root, url, manifest)
        for entry in [*_files(manifest), FileEntry.of(folder / MANIFEST)]:
            target = posixpath.join(root, entry.name)
            fs.makedirs(posixpath.dirname(target), exist_ok=True)
            fs.put_file(str(folder / entry.name), target)
            if fs.size(target) != entry.bytes:
                raise ViolationError(f"{url}/{entry.name} has {fs.size(target):,} bytes, {entry.bytes:,} were sent")
    except OSError as error:
        raise PadlessError(
            f"cannot copy the store to {url}: {error.strerror or error}; it is whole in {folder}, and the same command "
            "goes on with the copying"
        ) from error


def download(url: str, folder: Path) -> None:
    """Copy a store from a URL to a folder, every file held to its hash; the folder appears whole or not at all.

    Raises:
        PadlessError: When there is no store, or the folder is there already.
        ViolationError: When a file is not the one that the manifest lists.
    """
    if folder.exists():
        raise PadlessError(f"{folder} exists; a copy takes a new folder, so that old files never mix with new ones")
    fs, root = _filesystem(url)
    if not fs.exists(posixpath.join(root, MANIFEST)):
        raise PadlessError(f"{url} is not a padless store: it has no {MANIFEST}")
    scratch = folder.with_name(f"{UNFINISHED}{folder.name}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    fs.get_file(posixpath.join(root, MANIFEST), str(scratch / MANIFEST))
    for entry in _files(read_manifest(scratch)):
        (scratch / entry.name).parent.mkdir(exist_ok=True)
        try:
            fs.get_file(posixpath.join(root, entry.name), str(scratch / entry.name))
        except FileNotFoundError:
            raise ViolationError(f"{url}/{entry.name} is missing; {MANIFEST} lists it") from None
        if sha256_of(scratch / entry.name) != entry.sha256:
            raise ViolationError(f"{url}/{entry.name} is not the file that {MANIFEST} lists; copy the store out again")
    scratch.rename(folder)


class _Local(NamedTuple):
    """A file of this machine, and what it is called in the manifest."""

    path: Path
    name: str

    def __str__(self) -> str:
        return str(self.path)


def _fetch_inputs(inputs: Sequence[str], staging: Path, say: Say) -> list[_Local]:
    found: list[_Local] = []
    for item in inputs:
        if not is_url(item):
            found.append(_Local(Path(item), item))
            continue
        fs, path = _filesystem(item)
        names = sorted(fs.glob(path)) if any(sign in path for sign in "*?[") else sorted(fs.find(path))
        if not names:
            raise PadlessError(f"no file matches {item}")
        say(f"{item}: {len(names):,} files, copied to {staging}")
        wanted = [name for name in names if not _goes_with_another(name, names)]
        if fs.isdir(path):
            left_out = [name for name in wanted if data_format_of(PurePosixPath(name)) is None]
            for name in left_out:
                say(f"left out {name}: no data by its name")
            wanted = [name for name in wanted if name not in set(left_out)]
        found += [_Local(_fetch(fs, name, staging), fs.unstrip_protocol(name)) for name in wanted]
    return found


def _fetch(fs: Any, name: str, staging: Path) -> Path:
    """A copy; one that an earlier run made is kept when it is whole and the original is still the same object."""
    parent, base = posixpath.split(name)
    wanted = [base, *(_beside(PurePosixPath(base)) if base.endswith(".idx") else [])]
    originals = {file: posixpath.join(parent, file) for file in wanted}
    there = {file: original for file, original in originals.items() if file == base or fs.exists(original)}
    objects = "".join(fs.ukey(original) for original in there.values())  # size and date or ETag, where there is one
    folder = staging / hashlib.sha256(f"{name} {objects}".encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    for file, original in there.items():
        copy = folder / file
        if not copy.exists() or copy.stat().st_size != fs.size(original):
            fs.get_file(original, str(copy))
    return folder / base


def _beside(index: PurePosixPath) -> list[str]:
    """Names of the files that go with an `.idx`: its `.bin`, and the pair of its mask."""
    mask = mask_of(Path(index))
    return [index.with_suffix(".bin").name, mask.name, mask.with_suffix(".bin").name]


def _goes_with_another(name: str, names: Sequence[str]) -> bool:
    """Whether this is the `.bin` or the mask of an `.idx` that is there too."""
    stem, kind = posixpath.splitext(name)
    is_mask = stem.endswith("_loss_mask") and f"{stem.removesuffix('_loss_mask')}.idx" in names
    return kind in (".idx", ".bin") and (is_mask or (kind == ".bin" and f"{stem}.idx" in names))


def _named(given: Given, local: Sequence[_Local]) -> Given:
    """Sources under the names that the user gave them, not under those of their copies."""
    names = {file.path: file.name for file in local}
    if any(source.format == "text" for source in given.sources) and any(map(is_url, names.values())):
        raise PadlessError(
            "text documents are not read from URLs, for their names would be those of copies; copy the folder here, or "
            "write them as JSON lines"
        )
    sources = [dataclasses.replace(source, name=names.get(source.path, source.name)) for source in given.sources]
    return given._replace(sources=sources)


def _join_finished(url: str, work: Path) -> None:
    """Let a run that has ended already find its store, so that it ends at once; another store is refused by `run`."""
    fs, root = _filesystem(url)
    if fs.exists(posixpath.join(root, MANIFEST)) and not work.exists():
        download(url, work)


def _refuse_other(fs: Any, root: str, url: str, manifest: Manifest) -> None:
    path = posixpath.join(root, MANIFEST)
    if fs.exists(path) and fs.cat_file(path) != manifest.to_json():
        raise PadlessError(f"{url} holds another store; give another URL, or remove that one")
    strangers = [] if fs.exists(path) or not fs.exists(root) else [posixpath.basename(name) for name in fs.find(root)]
    mine = {posixpath.basename(entry.name) for entry in _files(manifest)}
    if set(strangers) - mine:
        first = min(set(strangers) - mine)
        raise PadlessError(f"{url} is not empty (it holds {first}); a store needs a place of its own")


def _files(manifest: Manifest) -> list[FileEntry]:
    """Every file of a store but the manifest."""
    tokenizer = () if manifest.tokenizer is None else manifest.tokenizer.files
    rejected = () if manifest.rejected is None else (manifest.rejected,)
    return [*manifest.shards, *manifest.plans, *manifest.documents, *rejected, *tokenizer]


def _filesystem(url: str) -> tuple[Any, str]:
    require("fsspec", extra="remote", feature=url)
    import fsspec

    try:
        return fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise PadlessError(f"cannot reach {url}: {error}") from error
