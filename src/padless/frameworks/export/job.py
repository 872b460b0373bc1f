"""`padless export`: all rows of a plan in another format, streamed, complete or absent."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from padless import __version__
from padless.corpus.lock import LOCK, exclusive
from padless.durable import UNFINISHED, sha256_of, write_bytes
from padless.errors import PadlessError, ViolationError
from padless.frameworks.export.indexed import write_indexed
from padless.frameworks.export.tables import TABLE_FORMATS, write_tables
from padless.frameworks.nemo import one_token_segments
from padless.planning import Plan
from padless.rows import Batch
from padless.training import PackedDataset

FORMATS = (*TABLE_FORMATS, "megatron")
EXPORT = "export.json"
CHUNK_TOKENS = 1 << 20

_LABELS = {
    "nemo": "loss_mask[i] = 1 where token i + 1 of the same segment is a target",
    "megatron": "rows_loss_mask[i] = 1 where token i is a target",
}


@dataclasses.dataclass(kw_only=True)
class Export:
    """What was written.

    Attributes:
        folder: Where it is.
        to: The format.
        rows, segments, tokens, targets: What the plan holds.
        lines: Table lines or documents written; fewer than rows only where rows were left out.
        left_out_segments: Segments that the format cannot hold (one token each, NeMo).
        targets_lost: Targets that are none any more because they begin a piece of a split sample.
    """

    folder: Path
    to: str
    rows: int = 0
    segments: int = 0
    tokens: int = 0
    targets: int = 0
    lines: int = 0
    left_out_segments: int = 0
    targets_lost: int = 0

    def count(self, batch: Batch) -> None:
        """Add a batch to the counts."""
        self.rows += batch.num_rows
        self.segments += batch.num_segments
        self.tokens += batch.num_tokens
        self.targets += batch.num_targets
        self.targets_lost += batch.targets_lost
        if self.to == "nemo":
            self.left_out_segments += one_token_segments(batch)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self) | {"folder": str(self.folder)}


def export(
    dataset: PackedDataset, output: str | Path, *, to: str, progress: Callable[[int], None] = lambda _: None
) -> Export:
    """Write every row of a data set in another format.

    Files are written to a folder beside `output` that takes its name only when all of them are complete and counted. A
    run that was killed leaves that folder, and the same command begins anew. `export.json` says what was written, with
    the hash of every file and the manifest of the store that it comes from.

    Args:
        dataset: The rows; its `align`, `pad_rows` and the like must be off, for rows are written without padding.
        output: A folder that does not exist yet.
        to: One of `FORMATS`.
        progress: Called with the number of rows of every chunk that was written.

    Raises:
        PadlessError: When the format is unknown or `output` is there already.
        ViolationError: When what was written is not what the plan says.

    Example:
        >>> import tempfile
        >>> from padless import TokenStore, plan
        >>> store = TokenStore.write(tempfile.mkdtemp(), [[5, 6, 7], [8, 9]], vocab_size=10)
        >>> done = export(PackedDataset(store, plan=plan(store.lengths, 8)), tempfile.mkdtemp() + "/out", to="trl")
        >>> done.rows, done.tokens, sorted(path.name for path in done.folder.iterdir())
        (1, 5, ['export.json', 'rows-00000.parquet'])
    """
    if to not in FORMATS:
        raise PadlessError(f"there is no format {to!r}; there are {', '.join(FORMATS)}")
    folder = Path(output)
    if folder.exists():
        raise PadlessError(f"{folder} exists; an export takes a new folder, so that old files never mix with new ones")
    scratch = folder.with_name(UNFINISHED + folder.name)
    scratch.mkdir(parents=True, exist_ok=True)
    done = Export(folder=folder, to=to)
    with exclusive(scratch):
        _clear(scratch)
        try:
            _write(scratch, dataset, done, progress)
        except BaseException:
            _clear(scratch)
            raise
    scratch.rename(folder)
    return done


def _write(scratch: Path, dataset: PackedDataset, done: Export, progress: Callable[[int], None]) -> None:
    batches = _stream(dataset, done, progress)
    if done.to == "megatron":
        stored = np.dtype(dataset.store.manifest.encoding.dtype)
        done.lines = write_indexed(scratch, batches, dataset.plan, stored)
    else:
        done.lines = write_tables(scratch, batches, TABLE_FORMATS[done.to])
    _check(done, dataset.plan)
    if done.to == "nemo":
        _write_nemo_metadata(scratch, dataset.plan, done)
    write_bytes(scratch / EXPORT, _manifest(scratch, dataset, done))


def _stream(dataset: PackedDataset, done: Export, progress: Callable[[int], None]) -> Iterator[Batch]:
    """All rows in the plan's order, a chunk at a time, counted."""
    rows = max(CHUNK_TOKENS // dataset.plan.capacity, 1)
    for start in range(0, len(dataset), rows):
        batch = dataset.__getitems__(range(start, min(start + rows, len(dataset))))
        done.count(batch)
        yield batch
        progress(batch.num_rows)


def _check(done: Export, plan: Plan) -> None:
    expected = (plan.num_rows, plan.num_segments, int(plan.lengths.sum(dtype=np.int64)))
    found = (done.rows, done.segments, done.tokens)
    if expected != found:
        raise ViolationError(
            f"the plan holds {expected} rows, segments, tokens and {found} were written; nothing was put in place"
        )


def _clear(scratch: Path) -> None:
    """Forget what a killed run left."""
    for leftover in scratch.iterdir():
        if leftover.name == LOCK:
            continue
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def _write_nemo_metadata(folder: Path, plan: Plan, done: Export) -> None:
    """The list of one record that NeMo and Bridge keep beside a packed file."""
    row_tokens = np.diff(np.concatenate([[0], np.cumsum(plan.lengths)])[plan.row_offsets])
    record = {
        "dataset_max_seqlen": int(plan.lengths.max()),
        "max_samples_per_bin": int(np.diff(plan.row_offsets).max()),
        "packing_factor": round(done.segments / done.rows, 2),
        "packing_efficiency": round(100 * done.tokens / (done.rows * plan.capacity), 2),
        "pack_size": plan.capacity,
        "min_packed_seqlen": int(row_tokens.min()),
    }
    write_bytes(folder / f"{plan.capacity}_metadata.jsonl", (json.dumps([record]) + "\n").encode())


def _manifest(scratch: Path, dataset: PackedDataset, done: Export) -> bytes:
    files = sorted(path for path in scratch.iterdir() if path.name != LOCK)
    content = {
        "format": 1,
        "padless": __version__,
        **{key: value for key, value in done.to_dict().items() if key != "folder"},
        "capacity": dataset.plan.capacity,
        "plan": {"fingerprint": dataset.plan.fingerprint, "spec": dataset.plan.spec.to_dict()},
        "accounting": dataclasses.asdict(dataset.plan.accounting),
        "labels": _LABELS.get(done.to, "unshifted; -100 where a token is not a target"),
        "files": [{"name": p.name, "bytes": p.stat().st_size, "sha256": sha256_of(p)} for p in files],
        "store": msgspec.to_builtins(dataset.store.manifest),
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
