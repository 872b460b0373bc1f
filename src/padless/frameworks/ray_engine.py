"""`padless pack --engine ray`: the parts of a corpus, each packed by some worker of a Ray cluster.

A part is made in a folder of its own and takes its place by one rename, with `part.json`, its completion marker, in it.
A worker that dies takes its unfinished folder with it and the part is made again by another; one that was taken for
dead and comes back finds its part in place and gives way. So a part is there once or not at all. When all are there,
their shards move to the store's folder under the names that one process would have given them.

The store's folder must be one that every node sees under one path, with renames: a shared file system.
"""

import itertools
import logging
import os
import shutil
import socket
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from padless.corpus.encode import Encoder
from padless.corpus.encoded import Position
from padless.corpus.engine import Filled, Progress, Work, fill_behind
from padless.corpus.manifest import FileEntry, Job, ShardEntry
from padless.corpus.parts import PARTS, parts_of
from padless.corpus.rejects import REJECTED
from padless.corpus.request import PackRequest
from padless.corpus.shard import shard_name
from padless.corpus.sources import Identity, Source
from padless.corpus.writer import finished_shards
from padless.durable import UNFINISHED, atomic_path, write_bytes
from padless.errors import PadlessError, require

MARKER = "part.json"
RETRIES = 4  # times that a part is given to another worker after one died with it
PATIENCE = 60  # seconds to wait for the calls that are still running when one has failed


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `part.json`: what one part became."""

    shards: tuple[ShardEntry, ...]
    rejected_records: int
    straddling: int
    surplus_eod: int
    read: int


@contextmanager
def on_ray(address: str | None = None) -> Iterator["RayEngine"]:
    """A Ray cluster as the engine of `padless.corpus.job.run`.

    Args:
        address: Where it is, as `ray.init` takes it. None: the cluster that this process is connected to, the one that
            `$RAY_ADDRESS` names, or one on this machine that ends with the block.

    Raises:
        MissingExtraError: Without ray.
        PadlessError: When nobody listens at the address.
    """
    require("ray", extra="ray", feature="padless pack --engine ray")
    import ray

    if ray.is_initialized():
        yield RayEngine(ray)
        return
    where = address or os.environ.get("RAY_ADDRESS")
    if where:
        _refuse_unreachable(where)
    settings: dict[str, Any] = {"address": where}
    if not where:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster of this machine alone talks to nobody else
        settings = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    ray.init(**settings, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield RayEngine(ray)
    finally:
        ray.shutdown()


def _refuse_unreachable(address: str) -> None:
    """Ray itself tries for minutes, and ends with its own logs; `auto` and `local` name no host."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise PadlessError(
            f"no Ray cluster answers at {address} ({error}); start one with `ray start --head`, or name another"
        ) from error


class RayEngine:
    """Every core of a cluster; see `on_ray`."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def results(self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        """`(number, function(*call))` for every call, as they are done; a call that dies with its worker runs again.

        Raises:
            PadlessError: The first that a call raised.
            OSError: When a call died with several workers, one after the other.
        """
        ray = self._ray
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(_caught)
        waiting, cwd = iter(enumerate(calls)), str(Path.cwd())
        running: dict[Any, int] = {}
        while True:
            # Few are handed over ahead of their turn, for those that run when a call fails have to be waited for.
            most = max(2 * int(ray.cluster_resources().get("CPU", 0)), 1)
            for number, call in itertools.islice(waiting, max(most - len(running), 0)):
                running[task.remote(cwd, function, *call)] = number
            if not running:
                return
            [reference], _ = ray.wait(list(running), num_returns=1)
            number = running.pop(reference)
            try:
                result = _result(ray, reference)
            except PadlessError:
                if running:
                    ray.wait(list(running), num_returns=len(running), timeout=PATIENCE)
                raise
            yield number, result

    def fingerprints(self, sources: Sequence[Source]) -> list[Identity]:
        """Hash every source, wherever there is a free core."""
        found = dict(self.results(_fingerprint, [(source,) for source in sources]))
        return [found[number] for number in range(len(sources))]

    def fill(self, work: Work) -> Filled:
        """Make the parts that are not there yet, then put the shards of all in their places."""
        if work.job.encoding.part_bytes is None:
            raise PadlessError("a cluster shares out parts, and the whole corpus is one; say part_bytes, e.g. 1 << 30")
        parts = parts_of(work.sources, work.job.encoding.part_bytes)
        folder = work.folder.absolute() / PARTS
        if not folder.exists():
            _forget_local(work.folder)
        folder.mkdir(exist_ok=True)
        for leftover in folder.glob(f"{UNFINISHED}*"):
            # Renamed first: a worker that still writes there must not put in place what is being removed.
            shutil.rmtree(leftover.rename(folder / f".dead-{uuid.uuid4().hex}"), ignore_errors=True)
        made = {number: part for number in range(len(parts)) if (part := _finished(folder, number)) is not None}
        if made:
            work.say(f"{len(made)} of {len(parts)} parts are done by an earlier run")
        resumed, missing = bool(made), [number for number in range(len(parts)) if number not in made]
        encoding = msgspec.structs.replace(work.job.encoding, part_bytes=None)  # a worker makes one part
        bare = msgspec.structs.replace(work.job, sources=(), encoding=encoding)
        shared = self._ray.put(_Shared(folder, bare, work.request, list(work.sources), work.encoder))
        for at, part in self.results(_make_part, [(shared, number, parts[number]) for number in missing]):
            made[missing[at]] = part
            work.report(_progress(work, made, len(parts)))
        return _assemble(work, [made[number] for number in range(len(parts))], resumed=resumed)


def _forget_local(folder: Path) -> None:
    """Remove what one process has made before the run came here: it is made again, and would be in the way."""
    for path in [*finished_shards(folder), folder / f"{REJECTED}.part"]:
        path.unlink(missing_ok=True)


class _Shared(NamedTuple):
    """What every worker is given once."""

    folder: Path
    job: Job
    request: PackRequest
    sources: list[Source]
    encoder: Encoder


def _progress(work: Work, made: dict[int, Part], parts: int) -> Progress:
    return Progress(
        phase=f"packing, {len(made):,} of {parts:,} parts",
        read=sum(part.read for part in made.values()),
        total=sum(entry.bytes for entry in work.job.sources),
        samples=sum(shard.samples for part in made.values() for shard in part.shards),
        tokens=sum(shard.tokens for part in made.values() for shard in part.shards),
    )


def _caught(cwd: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What is wrong with the input comes back as its message: it is no reason to try again."""
    with suppress(OSError):  # where the node has no such folder, inputs are named from the root or not at all
        os.chdir(cwd)
    try:
        return function(*arguments)
    except PadlessError as error:
        return _Wrong(str(error))


class _Wrong(NamedTuple):
    message: str


def _result(ray: Any, reference: Any) -> Any:
    try:
        result = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise OSError(None, f"a worker failed ({error.cause!r})") from error
    except ray.exceptions.RayError as error:
        why = str(error).strip().splitlines()[0]
        raise OSError(None, f"a part was lost with its worker {RETRIES + 1} times ({why})") from error
    if isinstance(result, _Wrong):
        raise PadlessError(result.message)
    return result


def _fingerprint(source: Source) -> Identity:
    return source.fingerprint()


def _make_part(shared: _Shared, number: int, own: range) -> Part:
    """Make one part, on whatever node this runs."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the tasks are the parallelism
    folder = shared.folder
    attempt = folder / f"{UNFINISHED}{number:05d}-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"
    attempt.mkdir()
    try:
        part = _pack(attempt, shared, own)
        write_bytes(attempt / MARKER, msgspec.json.encode(part))
        return part if _put_in_place(attempt, _place(folder, number)) else _finished(folder, number) or part
    finally:
        shutil.rmtree(attempt, ignore_errors=True)


def _pack(attempt: Path, shared: _Shared, own: range) -> Part:
    read = 0

    def count(progress: Progress) -> None:
        nonlocal read
        read = progress.read

    work = Work(
        folder=attempt,
        job=shared.job,
        request=shared.request,
        sources=shared.sources[: own.stop],  # numbers of sources are those of the whole corpus
        encoder=shared.encoder,
        report=count,
        say=lambda line: None,
    )
    filled = fill_behind(work, Position(own.start, 0))
    return Part(
        shards=filled.shards,
        rejected_records=filled.rejected_records,
        straddling=filled.straddling,
        surplus_eod=filled.surplus_eod,
        read=read,
    )


def _place(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}"


def _put_in_place(attempt: Path, place: Path) -> bool:
    """Rename the finished folder; False when the part is there already, for a renamed folder replaces no full one."""
    try:
        attempt.rename(place)
    except OSError:
        if not (place / MARKER).exists():
            raise
        return False
    return True


def _finished(folder: Path, number: int) -> Part | None:
    path = _place(folder, number) / MARKER
    return msgspec.json.decode(path.read_bytes(), type=Part) if path.exists() else None


def _assemble(work: Work, parts: Sequence[Part], *, resumed: bool) -> Filled:
    """Give every shard its place in the store. A kill in between leaves each in one of two places, so it goes on."""
    shards: list[ShardEntry] = []
    for number, part in enumerate(parts):
        for entry in part.shards:
            found, place = _place(work.folder / PARTS, number) / entry.name, work.folder / shard_name(len(shards))
            if found.exists():
                found.replace(place)
            shards.append(msgspec.structs.replace(entry, name=place.name))
    count = sum(part.rejected_records for part in parts)
    return Filled(
        shards=tuple(shards),
        rejected=_join_rejected(work.folder, len(parts)) if count else None,
        rejected_records=count,
        straddling=sum(part.straddling for part in parts),
        surplus_eod=sum(part.surplus_eod for part in parts),
        resumed=resumed,
    )


def _join_rejected(folder: Path, parts: int) -> FileEntry:
    with atomic_path(folder / REJECTED) as scratch, scratch.open("wb") as whole:
        for number in range(parts):
            path = _place(folder / PARTS, number) / REJECTED
            if path.exists():
                with path.open("rb") as file:
                    shutil.copyfileobj(file, whole)
    return FileEntry.of(folder / REJECTED)
