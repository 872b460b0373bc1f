"""Who does the work between an empty folder and its shards: this process, or (`frameworks.ray_engine`) a cluster."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from padless.corpus.encode import Encoder
from padless.corpus.encoded import Encoded, Position, encoded_batches
from padless.corpus.manifest import FileEntry, Job, ShardEntry
from padless.corpus.oversize import OversizeWatch
from padless.corpus.parts import PARTS, part_numbers
from padless.corpus.rejects import Rejects
from padless.corpus.request import PackRequest
from padless.corpus.shard import Shard
from padless.corpus.sources import BadRecord, Identity, Source
from padless.corpus.writer import StoreWriter, finished_shards
from padless.errors import PadlessError

__all__ = ["Engine", "Filled", "LocalEngine", "Progress", "Report", "Say", "Work", "fill_behind"]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is: sources found, bytes of them read, samples and tokens written."""

    phase: str
    read: int = 0
    total: int = 0
    samples: int = 0
    tokens: int = 0


Report = Callable[[Progress], None]
"""Called with progress a few times a second at most."""

Say = Callable[[str], None]
"""Called with one line of what was found."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What an engine is given: a folder that it alone writes to, and all that decides the bytes."""

    folder: Path
    job: Job
    request: PackRequest
    sources: Sequence[Source]
    encoder: Encoder
    report: Report
    say: Say

    @property
    def eod_id(self) -> int | None:
        """What ends a sample, if anything does."""
        return self.encoder.tokenizer.eod_id if self.encoder.add_eod else None

    @property
    def dtype(self) -> np.dtype:
        """Type of a token id on disk."""
        return np.dtype(self.job.encoding.dtype)


@dataclass(frozen=True, kw_only=True)
class Filled:
    """What an engine gives back: the shards, in the folder under their names, and what was seen on the way.

    Attributes:
        shards: In order.
        rejected: The file of rejected records, if there is one.
        rejected_records: Lines in it.
        straddling, surplus_eod: As in `Notes`.
        resumed: Whether an earlier run had done a part.
    """

    shards: tuple[ShardEntry, ...]
    rejected: FileEntry | None
    rejected_records: int
    straddling: int
    surplus_eod: int
    resumed: bool


class Engine(Protocol):
    """One way to do the work. Whatever the engine, equal jobs give equal bytes."""

    def fingerprints(self, sources: Sequence[Source]) -> list[Identity]:
        """Hash every source."""
        ...

    def fill(self, work: Work) -> Filled:
        """Write all shards; called again after a kill, it goes on."""
        ...


class LocalEngine:
    """This process, and `request.workers` beside it."""

    def fingerprints(self, sources: Sequence[Source]) -> list[Identity]:
        """One after the other."""
        return [source.fingerprint() for source in sources]

    def fill(self, work: Work) -> Filled:
        """Shards appear one by one under their final names; a later run goes on behind the last whole one."""
        if (work.folder / PARTS).exists():
            _forget_parts(work)
        return fill_behind(work, _position(work))


def fill_behind(work: Work, after: Position | None) -> Filled:
    """Write the shards of all records behind one; None begins with the first."""
    rejects = Rejects(work.folder, after)
    try:
        return _fill(work, after, rejects)
    except BaseException:
        rejects.close()
        raise


def _forget_parts(work: Work) -> None:
    """Begin anew where a cluster has begun: its rejected records lie with its parts, and not behind a shard."""
    work.say("an earlier run began on a cluster; this machine begins anew (--engine ray goes on)")
    for path in finished_shards(work.folder):
        path.unlink()
    # Renamed first: a worker that is still at it can then put nothing in place any more.
    shutil.rmtree((work.folder / PARTS).rename(work.folder / f".{PARTS}"))


def _position(work: Work) -> Position | None:
    shards = finished_shards(work.folder)
    if not shards:
        return None
    last = Shard(shards[-1])
    work.say(f"going on behind {len(shards)} finished shard{'s' if len(shards) > 1 else ''} of an earlier run")
    return Position(int(last.sources[-1]), int(last.records[-1]))


def _fill(work: Work, after: Position | None, rejects: Rejects) -> Filled:
    request = work.request
    writer = StoreWriter(
        work.folder,
        dtype=work.dtype,
        shard_tokens=request.shard_tokens,
        eod_id=work.eod_id,
        before_shard=rejects.sync,
    )
    watch = OversizeWatch(work.sources, request.spec)
    for path in finished_shards(work.folder):
        writer.adopt(path)
        watch.shard(Shard(path))
    total = sum(entry.bytes for entry in work.job.sources)
    parts = part_numbers(work.sources, work.job.encoding.part_bytes)
    read = straddling = surplus = part = 0
    for batch in encoded_batches(work.sources, work.encoder, after=after, workers=request.workers):
        if parts[batch.source] != part:
            writer.flush()  # a shard never holds samples of two parts, so that parts can be made anywhere
            part = parts[batch.source]
        _take(batch, writer, watch, rejects, request)
        read += batch.nbytes
        straddling += batch.straddling
        surplus += batch.surplus_eod
        work.report(Progress(phase="packing", read=read, total=total, samples=writer.samples, tokens=writer.tokens))
    writer.flush()
    watch.finish()
    return Filled(
        shards=tuple(writer.shards),
        rejected=rejects.finish(),
        rejected_records=rejects.count,
        straddling=straddling,
        surplus_eod=surplus,
        resumed=after is not None,
    )


def _take(batch: Encoded, writer: StoreWriter, watch: OversizeWatch, rejects: Rejects, request: PackRequest) -> None:
    if batch.rejected:
        _refuse_bad_records(batch.rejected, request)
        rejects.add(batch.source, batch.rejected)
    watch.block(batch.block)
    writer.append(batch.block)


def _refuse_bad_records(rejected: Sequence[BadRecord], request: PackRequest) -> None:
    """End the run at a bad record, unless they are to be written down."""
    if request.on_bad_record == "error":
        more = len(rejected) - 1
        others = f" ({more} more nearby)" if more else ""
        raise PadlessError(f"{rejected[0]}{others}; mend it, or leave such records out with --on-bad-record skip")
