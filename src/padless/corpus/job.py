"""The main job: inputs to a store with a plan, in one call that a kill cannot hurt.

Shards appear one by one under their final names, each whole. `job.json` says what is being made; `manifest.json`
appears last and makes the folder a store. A run that finds `job.json` of the same job goes on behind the last whole
shard, and because where shards end depends on the samples alone, it ends with the bytes of an undisturbed run.
"""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from padless.corpus.documents import save_documents
from padless.corpus.encode import Encoder
from padless.corpus.encoded import Encoded, Position, encoded_batches
from padless.corpus.lock import exclusive
from padless.corpus.manifest import (
    FORMAT,
    JOB,
    MANIFEST,
    Conventions,
    Counts,
    Encoding,
    Job,
    Manifest,
    Packing,
    SourceEntry,
    Versions,
    read_job,
    read_manifest,
    store_fingerprint,
)
from padless.corpus.oversize import OversizeWatch
from padless.corpus.plans import save_plan
from padless.corpus.records import detect_shape
from padless.corpus.rejects import REJECTED, Rejects
from padless.corpus.request import PackRequest
from padless.corpus.shard import Shard, token_dtype
from padless.corpus.sources import Source, find_sources, first_record
from padless.corpus.store import TokenStore
from padless.corpus.summary import Notes, Summary, summarise
from padless.corpus.templates import load_template
from padless.corpus.tokenizer_files import TOKENIZER, save_tokenizer, tokenizer_entry
from padless.corpus.tokenizers import load_tokenizer
from padless.corpus.writer import StoreWriter, finished_shards
from padless.durable import remove_unfinished, write_bytes
from padless.errors import PadlessError
from padless.planning import PlanSpec, plan_with

__all__ = ["PackRequest", "Progress", "pack"]


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


def pack(
    inputs: str | Path | Sequence[str | Path],
    *,
    tokenizer: str,
    capacity: int,
    output: str | Path,
    report: Report = lambda progress: None,
    say: Say = lambda line: None,
    **settings: object,
) -> Summary:
    """Turn text into packed, reproducible rows: `padless pack` as a function.

    Args:
        inputs: Files, folders, globs, or `-` for standard input; one or several.
        tokenizer: `bytes`, a path or a hub name; see `PackRequest`.
        capacity: Tokens in a row.
        output: Folder of the store.
        report: Called with `Progress`.
        say: Called with one line each about what was found in the inputs.
        **settings: Any other field of `PackRequest`.

    Returns:
        What went in and came out.

    Raises:
        PadlessError: Anything foreseen that is wrong with the input; nothing half-written stays behind.

    Example:
        >>> import json, tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "data.jsonl").write_text(json.dumps({"text": "to be"}) + chr(10) + json.dumps({"text": "or"}))
        >>> summary = pack(folder / "data.jsonl", tokenizer="bytes", capacity=16, output=folder / "out")
        >>> summary.samples, summary.tokens, summary.rows
        (2, 9, 1)
    """
    several = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    request = PackRequest(
        inputs=tuple(str(item) for item in several),
        tokenizer=tokenizer,
        capacity=capacity,
        output=Path(output),
        **settings,  # type: ignore[arg-type]
    )
    return run(request, report=report, say=say)


def run(request: PackRequest, *, report: Report, say: Say) -> Summary:
    """Do what was asked for; the same request goes on where a killed run stopped."""
    started = time.perf_counter()
    sources = find_sources(request.inputs, on_ignored=lambda path: say(f"left out {path}: no data by its name"))
    encoder = _encoder(request, sources, say)
    report(Progress(phase="hashing the inputs"))
    before = _stamps(sources)
    job = _job(request, sources, encoder)
    folder = request.output
    fresh = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder):
            if (folder / MANIFEST).exists():
                _refuse_other(folder, read_manifest(folder).job, job)
                (folder / JOB).unlink(missing_ok=True)  # a kill between the last two steps left it
                say(f"{folder} holds the result of this very command already")
                return summarise(TokenStore(folder))
            notes = _make(folder, job, request, sources, encoder, before, report, say)
    except OSError as error:
        raise PadlessError(_system_says(error, folder)) from error
    finally:
        if fresh and folder.exists() and not any(folder.iterdir()):
            folder.rmdir()
    return summarise(TokenStore(folder), seconds=time.perf_counter() - started, notes=notes)


def _encoder(request: PackRequest, sources: Sequence[Source], say: Say) -> Encoder:
    tokenizer = load_tokenizer(request.tokenizer, eod=request.eod)
    shape = detect_shape(first_record(sources).fields, request.field)
    targets = request.targets or {"messages": "assistant", "pair": "completion"}.get(shape.kind, "all")
    wants_template = shape.kind == "messages" or request.chat_template is not None
    template = load_template(request.chat_template, tokenizer, date=request.template_date) if wants_template else None
    files = sum(max(len(source.files), 1) for source in sources)
    say(
        f"{files} {sources[0].format} file{'s' if files > 1 else ''}, records of {shape}, "
        f"targets: {targets}, tokenizer {tokenizer.name} ({tokenizer.vocab_size:,} tokens)"
    )
    return Encoder(
        tokenizer=tokenizer,
        shape=shape,
        targets=targets,  # type: ignore[arg-type]  # a literal by construction; Encoder checks it again
        template=template,
        add_eod=request.add_eod,
    )


def _job(request: PackRequest, sources: Sequence[Source], encoder: Encoder) -> Job:
    spec = request.spec
    return Job(
        format=FORMAT,
        versions=Versions.here(),
        sources=tuple(SourceEntry(**source.fingerprint()._asdict()) for source in sources),
        tokenizer=tokenizer_entry(encoder.tokenizer, encoder.template, encoder.uses_template),
        encoding=Encoding(
            shape=str(encoder.shape),
            targets=encoder.targets,
            eod=encoder.add_eod,
            dtype=str(token_dtype(encoder.tokenizer.vocab_size)),
            shard_tokens=request.shard_tokens,
            on_bad_record=request.on_bad_record,
        ),
        packing=Packing(**{name: getattr(spec, name) for name in Packing.__struct_fields__}),
    )


def _stamps(sources: Sequence[Source]) -> dict[Path, tuple[int, int]]:
    """Size and time of change of every file that is read."""
    paths = [path for source in sources for path in source.paths]
    return {path: (found.st_size, found.st_mtime_ns) for path in paths for found in [path.stat()]}


def _refuse_changed(before: dict[Path, tuple[int, int]], after: dict[Path, tuple[int, int]]) -> None:
    """Raise when a file changed between being hashed and being read: the manifest would name other content."""
    changed = [path.as_posix() for path in before if before[path] != after[path]]
    if changed:
        raise PadlessError(f"{changed[0]} changed while it was being packed; pack again when nothing writes to it")


def _refuse_other(folder: Path, found: Job, wanted: Job) -> None:
    """Raise when the folder holds another job, naming every setting that differs."""
    differences = _differences("", msgspec.to_builtins(found), msgspec.to_builtins(wanted))
    if differences:
        raise PadlessError(
            f"{folder} was made by another run: {'; '.join(differences)}. Give another folder; for other rows from the "
            f"same tokens use `padless plan {folder} --capacity M`"
        )


def _differences(name: str, found: object, wanted: object) -> list[str]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = dict.fromkeys([*found, *wanted])
        return [
            line for key in keys for line in _differences(f"{name}.{key}".lstrip("."), found.get(key), wanted.get(key))
        ]
    if isinstance(found, tuple) and isinstance(wanted, tuple) and len(found) == len(wanted):
        pairs = enumerate(zip(found, wanted, strict=True))
        return [line for i, (a, b) in pairs for line in _differences(f"{name}[{i}]", a, b)]
    return [] if found == wanted else [f"{name} was {_short(found)}, now {_short(wanted)}"]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _make(
    folder: Path,
    job: Job,
    request: PackRequest,
    sources: Sequence[Source],
    encoder: Encoder,
    before: dict[Path, tuple[int, int]],
    report: Report,
    say: Say,
) -> Notes:
    """Everything between an empty (or half-filled) folder and a manifest."""
    after = _take_up(folder, job, say)
    rejects = Rejects(folder, after)
    eod_id = encoder.tokenizer.eod_id if encoder.add_eod else None
    dtype = np.dtype(job.encoding.dtype)
    writer = StoreWriter(
        folder, dtype=dtype, shard_tokens=request.shard_tokens, eod_id=eod_id, before_shard=rejects.sync
    )
    watch = OversizeWatch(sources, request.spec)
    total = sum(entry.bytes for entry in job.sources)
    read = straddling = surplus = 0
    try:
        for path in finished_shards(folder):
            writer.adopt(path)
            watch.shard(Shard(path))
        for batch in encoded_batches(sources, encoder, after=after, workers=request.workers):
            if batch.rejected:
                _judge(batch, rejects, request)
            watch.block(batch.block)
            writer.append(batch.block)
            read += batch.nbytes
            straddling += batch.straddling
            surplus += batch.surplus_eod
            report(Progress(phase="packing", read=read, total=total, samples=writer.samples, tokens=writer.tokens))
        writer.flush()
        watch.finish()
        _refuse_changed(before, _stamps(sources))
        report(Progress(phase="planning rows", samples=writer.samples, tokens=writer.tokens))
        _close(folder, job, writer, rejects, sources, encoder, request.spec)
    except PadlessError:
        rejects.close()
        _forget(folder)
        raise
    except OSError:
        rejects.close()
        remove_unfinished(folder)
        if not finished_shards(folder):
            _forget(folder)
        raise
    return Notes(straddling=straddling, surplus_eod=surplus, resumed=after is not None)


def _take_up(folder: Path, job: Job, say: Say) -> Position | None:
    """Start a job, or find where an earlier run of it stopped."""
    remove_unfinished(folder)
    found = read_job(folder)
    if found is None:
        strangers = sorted(path.name for path in folder.iterdir() if path.name != ".lock")
        if strangers:
            raise PadlessError(
                f"{folder} is not empty (it holds {', '.join(strangers[:3])}); a store needs a folder of its own"
            )
        write_bytes(folder / JOB, job.to_json())
        return None
    _refuse_other(folder, found, job)
    shards = finished_shards(folder)
    if not shards:
        return None
    last = Shard(shards[-1])
    say(f"going on behind {len(shards)} finished shard{'s' if len(shards) > 1 else ''} of an earlier run")
    return Position(int(last.sources[-1]), int(last.records[-1]))


def _judge(batch: Encoded, rejects: Rejects, request: PackRequest) -> None:
    """End the run at a bad record, or write it down."""
    if request.on_bad_record == "error":
        more = len(batch.rejected) - 1
        others = f" ({more} more nearby)" if more else ""
        raise PadlessError(f"{batch.rejected[0]}{others}; mend it, or leave such records out with --on-bad-record skip")
    rejects.add(batch.source, batch.rejected)


def _close(
    folder: Path,
    job: Job,
    writer: StoreWriter,
    rejects: Rejects,
    sources: Sequence[Source],
    encoder: Encoder,
    spec: PlanSpec,
) -> None:
    """Plan the rows, put the side files in place, and last of all the manifest."""
    if not writer.shards:
        raise PadlessError(f"the inputs hold no sample: all {rejects.count:,} records were rejected")
    lengths = np.concatenate([np.diff(Shard(folder / entry.name).offsets) for entry in writer.shards])
    planned = save_plan(folder, plan_with(lengths, spec))
    rejected = rejects.finish()
    save_tokenizer(folder, encoder.tokenizer, encoder.template)
    manifest = Manifest(
        **{name: getattr(job, name) for name in Job.__struct_fields__},
        fingerprint=store_fingerprint(job.encoding, tuple(writer.shards)),
        conventions=Conventions(),
        counts=Counts.of(tuple(writer.shards), rejected_records=rejects.count),
        shards=tuple(writer.shards),
        rejected=rejected,
        documents=save_documents(folder, sources),
        plans=(planned,),
    )
    write_bytes(folder / MANIFEST, manifest.to_json())
    (folder / JOB).unlink()


def _forget(folder: Path) -> None:
    """Remove everything that an unfinished run has made; an error leaves nothing half-written."""
    remove_unfinished(folder)
    shutil.rmtree(folder / TOKENIZER, ignore_errors=True)
    made = ["plan-*.npz", "documents-*.jsonl", f"{REJECTED}*", JOB]
    for path in [*finished_shards(folder), *(path for name in made for path in folder.glob(name))]:
        path.unlink(missing_ok=True)


def _system_says(error: OSError, folder: Path) -> str:
    what = error.strerror or str(error)
    place = error.filename or folder
    return (
        f"cannot write {os.fspath(place)}: {what}; nothing half-written stays. Mend it (make room) and run the same "
        f"command again: it goes on behind the last whole shard"
    )
