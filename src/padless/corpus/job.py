"""The main job: inputs to a store with a plan, in one call that a kill cannot hurt.

Shards appear one by one under their final names, each whole. `job.json` says what is being made; `manifest.json`
appears last and makes the folder a store. A run that finds `job.json` of the same job goes on behind the last whole
shard, and because where shards end depends on the samples alone, it ends with the bytes of an undisturbed run.
"""

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from padless.corpus.documents import save_documents
from padless.corpus.encode import Encoder
from padless.corpus.engine import Engine, Filled, LocalEngine, Progress, Report, Say, Work
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
from padless.corpus.parts import PARTS
from padless.corpus.plans import save_plan
from padless.corpus.records import detect_shape
from padless.corpus.rejects import REJECTED
from padless.corpus.request import PackRequest
from padless.corpus.shard import Shard, token_dtype
from padless.corpus.sources import Identity, Source, find_sources, first_record
from padless.corpus.store import TokenStore
from padless.corpus.summary import Notes, Summary, summarise
from padless.corpus.templates import load_template
from padless.corpus.tokenizer_files import TOKENIZER, save_tokenizer, tokenizer_entry
from padless.corpus.tokenizers import load_tokenizer
from padless.corpus.writer import finished_shards
from padless.durable import remove_unfinished, write_bytes
from padless.errors import PadlessError
from padless.planning import plan_with

__all__ = ["PackRequest", "Progress", "pack"]


def pack(
    inputs: str | Path | Sequence[str | Path],
    *,
    tokenizer: str,
    capacity: int,
    output: str | Path,
    report: Report = lambda progress: None,
    say: Say = lambda line: None,
    engine: Engine | None = None,
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
        engine: Who does the work; this process unless given.
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
    return run(request, report=report, say=say, engine=engine)


class Given(NamedTuple):
    """What was found of the inputs before any of them is packed.

    Attributes:
        sources: What to read, in order.
        encoder: What to make of it.
    """

    sources: Sequence[Source]
    encoder: Encoder

    def part(self, own: range) -> "Given":
        """Some of the sources."""
        return self._replace(sources=[self.sources[number] for number in own])


def look(request: PackRequest, say: Say) -> Given:
    """Find the sources, the shape of their records, and the tokenizer."""
    sources = find_sources(request.inputs, on_ignored=lambda path: say(f"left out {path}: no data by its name"))
    return Given(sources, _encoder(request, sources, say))


def run(
    request: PackRequest, *, report: Report, say: Say, engine: Engine | None = None, given: Given | None = None
) -> Summary:
    """Do what was asked for; the same request goes on where a killed run stopped, with whatever engine.

    Args:
        request: What was asked for.
        report: Called with `Progress`.
        say: Called with one line each about what was found.
        engine: Who does the work; this process unless given.
        given: What `look` found, where somebody looked already.
    """
    engine = LocalEngine() if engine is None else engine
    started = time.perf_counter()
    sources, encoder = look(request, say) if given is None else given
    report(Progress(phase="hashing the inputs"))
    before = _stamps(sources)
    job = _job(request, engine.fingerprints(sources), encoder)
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
            _begin(folder, job)
            work = Work(
                folder=folder,
                job=job,
                request=request,
                sources=sources,
                encoder=encoder,
                report=report,
                say=say,
            )
            notes = _make(work, engine, before)
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


def _job(request: PackRequest, identities: Sequence[Identity], encoder: Encoder) -> Job:
    spec = request.spec
    return Job(
        format=FORMAT,
        versions=Versions.here(),
        sources=tuple(SourceEntry(**identity._asdict()) for identity in identities),
        tokenizer=tokenizer_entry(encoder.tokenizer, encoder.template, encoder.uses_template),
        encoding=Encoding(
            shape=str(encoder.shape),
            targets=encoder.targets,
            eod=encoder.add_eod,
            dtype=str(token_dtype(encoder.tokenizer.vocab_size)),
            shard_tokens=request.shard_tokens,
            on_bad_record=request.on_bad_record,
            part_bytes=request.part_bytes,
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


def _make(work: Work, engine: Engine, before: dict[Path, tuple[int, int]]) -> Notes:
    """Everything between an empty (or half-filled) folder and a manifest."""
    try:
        filled = engine.fill(work)
        _refuse_changed(before, _stamps(work.sources))
        counts = Counts.of(filled.shards)
        work.report(Progress(phase="planning rows", samples=counts.samples, tokens=counts.tokens))
        _close(work, filled)
    except PadlessError:
        _forget(work.folder)
        raise
    except OSError:
        remove_unfinished(work.folder)
        if not finished_shards(work.folder) and not (work.folder / PARTS).exists():
            _forget(work.folder)
        raise
    return Notes(straddling=filled.straddling, surplus_eod=filled.surplus_eod, resumed=filled.resumed)


def _begin(folder: Path, job: Job) -> None:
    """Start a job, or join an earlier run of it."""
    remove_unfinished(folder)
    found = read_job(folder)
    if found is not None:
        _refuse_other(folder, found, job)
        return
    strangers = sorted(path.name for path in folder.iterdir() if path.name != ".lock")
    if strangers:
        raise PadlessError(
            f"{folder} is not empty (it holds {', '.join(strangers[:3])}); a store needs a folder of its own"
        )
    write_bytes(folder / JOB, job.to_json())


def _close(work: Work, filled: Filled) -> None:
    """Plan the rows, put the side files in place, and last of all the manifest."""
    folder, job = work.folder, work.job
    if not filled.shards:
        raise PadlessError(f"the inputs hold no sample: all {filled.rejected_records:,} records were rejected")
    lengths = np.concatenate([np.diff(Shard(folder / entry.name).offsets) for entry in filled.shards])
    planned = save_plan(folder, plan_with(lengths, work.request.spec))
    save_tokenizer(folder, work.encoder.tokenizer, work.encoder.template)
    manifest = Manifest(
        **{name: getattr(job, name) for name in Job.__struct_fields__},
        fingerprint=store_fingerprint(job.encoding, filled.shards),
        conventions=Conventions(),
        counts=Counts.of(filled.shards, rejected_records=filled.rejected_records),
        shards=filled.shards,
        rejected=filled.rejected,
        documents=save_documents(folder, work.sources),
        plans=(planned,),
    )
    write_bytes(folder / MANIFEST, manifest.to_json())
    (folder / JOB).unlink()
    shutil.rmtree(folder / PARTS, ignore_errors=True)


def _forget(folder: Path) -> None:
    """Remove everything that an unfinished run has made; an error leaves nothing half-written."""
    remove_unfinished(folder)
    for made in (TOKENIZER, PARTS):
        shutil.rmtree(folder / made, ignore_errors=True)
    files = ["plan-*.npz", "documents-*.jsonl", f"{REJECTED}*", JOB]
    for path in [*finished_shards(folder), *(path for name in files for path in folder.glob(name))]:
        path.unlink(missing_ok=True)


def _system_says(error: OSError, folder: Path) -> str:
    what = error.strerror or str(error)
    place = error.filename or folder
    return (
        f"cannot write {os.fspath(place)}: {what}; nothing half-written stays. Mend it (make room) and run the same "
        f"command again: it goes on behind the last whole shard"
    )
