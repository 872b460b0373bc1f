"""Check everything about a store that needs no model, from its bytes alone.

A check never trusts what another part of the store says when it can count for itself; it lists the first few violations
and goes on, so that one look shows all that is wrong.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from padless.corpus.manifest import FileEntry, Manifest, read_manifest, store_fingerprint
from padless.corpus.shard import Shard
from padless.corpus.tokenizer_files import open_tokenizer
from padless.corpus.writer import shard_counts
from padless.durable import UNFINISHED, sha256_of
from padless.errors import PadlessError
from padless.planning import Plan, check_plan

__all__ = ["Check", "verify"]

SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Check:
    """One promise, looked at.

    Attributes:
        name: What was checked.
        seen: What was looked at, in numbers.
        violations: The first few things that are wrong; empty when the promise holds.
    """

    name: str
    seen: str
    violations: tuple[str, ...]


def verify(path: str | Path, *, report: Callable[[str], None] = lambda name: None) -> list[Check]:
    """Check a store.

    Args:
        path: The folder that `padless pack` wrote.
        report: Called with the name of each check before it begins.

    Returns:
        One entry per check, also for those that found nothing. When a file is missing or damaged, checks that would
        have to read it are left out: its own line says so.

    Raises:
        PadlessError: When the folder is no store at all.
        ViolationError: When the manifest itself was changed.

    Example:
        >>> import tempfile
        >>> from padless.corpus import TokenStore
        >>> folder = tempfile.mkdtemp()
        >>> _ = TokenStore.write(folder, [[5, 6, 7], [8, 9]], vocab_size=10)
        >>> [check.violations for check in verify(folder)]
        [(), (), (), (), ()]
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    checks: list[Check] = []

    def run(name: str, found: Iterator[str], seen: str) -> None:
        report(name)
        checks.append(Check(name=name, seen=seen, violations=tuple(_first(found))))

    files = [
        *manifest.shards,
        *manifest.plans,
        *manifest.documents,
        *([manifest.rejected] if manifest.rejected else []),
    ]
    files += [] if manifest.tokenizer is None else list(manifest.tokenizer.files)
    size = sum(entry.bytes for entry in files)
    run("files", _files(folder, files), f"{len(files)} files, {size / 1e6:,.1f} MB hashed")
    damaged = bool(checks[0].violations)
    counts = manifest.counts
    seen = f"{counts.samples:,} samples, {counts.tokens:,} tokens, {counts.targets:,} targets"
    run("counts", iter(()) if damaged else _counts(folder, manifest), seen)
    if damaged:
        return checks
    shards = [Shard(folder / entry.name) for entry in manifest.shards]
    run("tokens", _tokens(folder, manifest, shards), "ids inside the vocabulary, EOD where it belongs")
    run("targets", _targets(manifest, shards), "never a sample's first token; every sample has one")
    lengths = np.concatenate([np.diff(shard.offsets) for shard in shards]).astype(np.int64)
    rows = [_plan(folder, entry.name) for entry in manifest.plans]
    total = sum(plan.num_rows for plan in rows)
    run("plans", _plans(manifest, rows, lengths), f"{len(rows)} plan{'s' if len(rows) != 1 else ''}, {total:,} rows")
    return checks


def _first(found: Iterator[str]) -> list[str]:
    shown: list[str] = []
    more = 0
    for violation in found:
        if len(shown) < SHOWN:
            shown.append(violation)
        else:
            more += 1
    return [*shown, f"and {more} more"] if more else shown


def _files(folder: Path, entries: list) -> Iterator[str]:
    for entry in entries:
        yield from _file(folder / entry.name, entry)
    listed = {entry.name for entry in entries}
    for path in sorted([*folder.glob("tokens-*.arrow"), *folder.glob("plan-*.npz")]):
        if path.name not in listed:
            yield f"{path.name} is in the folder and not in the manifest: it belongs to another store"
    for path in sorted(folder.glob(f"{UNFINISHED}*")):
        yield f"{path.name} is left over from a run that did not end"


def _file(path: Path, entry: FileEntry) -> Iterator[str]:
    if not path.is_file():
        yield f"{entry.name} is missing"
    elif (size := path.stat().st_size) != entry.bytes:
        yield f"{entry.name} has {size:,} bytes, the manifest says {entry.bytes:,}"
    elif (found := sha256_of(path)) != entry.sha256:
        yield f"{entry.name} has sha256 {found[:12]}..., the manifest says {entry.sha256[:12]}...: its bytes changed"


def _counts(folder: Path, manifest: Manifest) -> Iterator[str]:
    eod = _eod(manifest)
    for entry in manifest.shards:
        for name, counted in shard_counts(Shard(folder / entry.name), eod).items():
            said = getattr(entry, name)
            if eod is None and name == "eod_tokens":
                continue
            if said != counted:
                yield f"{entry.name} holds {counted:,} {name}, the manifest says {said:,}"
    for name in ("samples", "tokens", "targets", "eod_tokens"):
        total = sum(getattr(entry, name) for entry in manifest.shards)
        if getattr(manifest.counts, name) != total:
            yield f"the manifest says {getattr(manifest.counts, name):,} {name}, its shards add up to {total:,}"
    fingerprint = store_fingerprint(manifest.encoding, manifest.shards)
    if fingerprint != manifest.fingerprint:
        yield f"the store's fingerprint is {fingerprint[:12]}..., the manifest says {manifest.fingerprint[:12]}..."
    lines = 0 if manifest.rejected is None else (folder / manifest.rejected.name).read_bytes().count(b"\n")
    if lines != manifest.counts.rejected_records:
        yield f"{lines:,} rejected records are written down, the manifest says {manifest.counts.rejected_records:,}"


def _eod(manifest: Manifest) -> int | None:
    entry = manifest.tokenizer
    return entry.eod_id if entry is not None and manifest.encoding.eod else None


def _tokens(folder: Path, manifest: Manifest, shards: list[Shard]) -> Iterator[str]:
    entry = manifest.tokenizer
    if entry is not None:
        try:
            open_tokenizer(folder, manifest)
        except PadlessError as error:
            yield str(error)
    eod = _eod(manifest)
    for name, shard in zip(_names(manifest), shards, strict=True):
        lengths = np.diff(shard.offsets)
        if shard.offsets[0] != 0 or shard.offsets[-1] != len(shard.tokens) or (lengths < 1).any():
            yield f"{name}: samples do not cover its tokens one after the other"
            continue
        if entry is not None and int(shard.tokens.max()) >= entry.vocab_size:
            yield f"{name}: token id {shard.tokens.max()} is outside the vocabulary of {entry.vocab_size:,}"
        if shard.sources.max() >= len(manifest.sources) or (np.diff(shard.sources.astype(np.int64)) < 0).any():
            yield f"{name}: samples are not in the order of their sources"
        if eod is None:
            continue
        last = shard.offsets[1:] - 1
        yield from _samples(name, shard, np.flatnonzero(shard.tokens[last] != eod), "do not end with EOD")
        twice = (lengths > 1) & (shard.tokens[np.maximum(last - 1, 0)] == eod)
        yield from _samples(name, shard, np.flatnonzero(twice), "end with more than one EOD")


def _targets(manifest: Manifest, shards: list[Shard]) -> Iterator[str]:
    for name, shard in zip(_names(manifest), shards, strict=True):
        targets = shard.targets_between(0, len(shard.tokens))
        if targets is None:
            continue
        starts = shard.offsets[:-1]
        yield from _samples(name, shard, np.flatnonzero(targets[starts]), "have their first token as a target")
        if manifest.tokenizer is not None:
            per_sample = np.add.reduceat(targets.astype(np.int32), starts)
            yield from _samples(name, shard, np.flatnonzero(per_sample == 0), "have no target")


def _samples(name: str, shard: Shard, bad: np.ndarray, what: str) -> Iterator[str]:
    if len(bad):
        records = ", ".join(str(shard.records[at]) for at in bad[:3].tolist())
        yield f"{name}: {len(bad):,} samples {what} (records {records}{', ...' if len(bad) > 3 else ''})"


def _names(manifest: Manifest) -> list[str]:
    return [entry.name for entry in manifest.shards]


def _plan(folder: Path, name: str) -> Plan:
    return Plan.load(folder / name)


def _plans(manifest: Manifest, plans: list[Plan], lengths: np.ndarray) -> Iterator[str]:
    for entry, plan in zip(manifest.plans, plans, strict=True):
        if plan.fingerprint != entry.fingerprint or plan.capacity != entry.capacity:
            yield f"{entry.name} is another plan than the manifest lists"
        try:
            check_plan(plan, lengths)
        except PadlessError as error:
            yield f"{entry.name}: {error}"
    packing = manifest.packing
    if packing is not None and packing.capacity not in [entry.capacity for entry in manifest.plans]:
        yield f"there is no plan for capacity {packing.capacity}, which this store was packed with"
