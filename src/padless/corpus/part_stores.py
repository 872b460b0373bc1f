"""A corpus too large for one plan: a store for each part, planned apart, and what that costs in rows.

Each part is packed by the ordinary job, so each store has its manifest, is resumed, verified and trained on like any
other. What is known of the whole is their histograms, merged: `lengths.npz`, from which rows of the whole corpus can be
planned without its samples, and `parts.json`, which appears when all parts are done.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from padless.corpus.engine import Progress, Report, Say
from padless.corpus.job import Given, look, run
from padless.corpus.manifest import FileEntry
from padless.corpus.parts import parts_of
from padless.corpus.request import PackRequest
from padless.corpus.store import TokenStore
from padless.durable import write_bytes
from padless.lengths import LengthHistogram
from padless.planning import STRATEGIES, outline_with

__all__ = ["PART_BYTES", "PartStores", "Runner", "pack_parts"]

PART_BYTES = 1 << 30
PARTS_FILE, LENGTHS_FILE = "parts.json", "lengths.npz"


class PartStores(msgspec.Struct, frozen=True, kw_only=True):
    """What was made; the content of `parts.json`.

    Attributes:
        stores: The folders, in the order of the inputs.
        samples, tokens: In all of them.
        rejected_records: Records that could not become a sample.
        truncated_samples, truncated_tokens, split_samples, dropped_samples, dropped_tokens: As in `Summary`.
        rows: Rows of all plans.
        rows_together: Rows that one plan over the whole corpus would have, from the merged histogram; None for
            strategies that read samples in their order.
        lengths: The merged histogram's file.
    """

    stores: tuple[str, ...]
    samples: int
    tokens: int
    rejected_records: int
    truncated_samples: int
    truncated_tokens: int
    split_samples: int
    dropped_samples: int
    dropped_tokens: int
    rows: int
    rows_together: int | None
    lengths: FileEntry

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return msgspec.to_builtins(self) | {"cost": self.cost}

    @property
    def cost(self) -> float | None:
        """Rows that planning apart adds, as a fraction of those of one plan."""
        return None if self.rows_together is None else self.rows / self.rows_together - 1


class Runner(Protocol):
    """Runs calls, here or elsewhere, and gives their results as they are done."""

    def results(self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        """`(number, function(*call))` for every call."""
        ...


class _Here:
    def results(self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        return ((number, function(*call)) for number, call in enumerate(calls))


_SUMMED = (
    *("samples", "tokens", "rejected_records", "rows", "truncated_samples", "truncated_tokens", "split_samples"),
    *("dropped_samples", "dropped_tokens"),
)


class _Made(NamedTuple):
    counts: dict[str, int]
    lengths: LengthHistogram


def pack_parts(
    request: PackRequest,
    *,
    engine: Runner | None = None,
    report: Report = lambda progress: None,
    say: Say = lambda line: None,
) -> PartStores:
    """Pack every part of the inputs into a store of its own, `OUTPUT/part-00000` and so on.

    Args:
        request: As for one store; `part_bytes` decides the parts, 1 GiB of input unless given.
        engine: Who runs them; this process unless given. The bytes are the same.
        report: Called with `Progress` when a part is done.
        say: Called with one line each about what was found.

    Raises:
        PadlessError: As `pack`; parts that are done stay, and the same call goes on with the others.
    """
    given = look(request, say)
    ranges = parts_of(given.sources, request.part_bytes or PART_BYTES)
    folders = [request.output / f"part-{number:05d}" for number in range(len(ranges))]
    calls = [
        (dataclasses.replace(request, output=folder.absolute(), part_bytes=None), given.part(own))
        for folder, own in zip(folders, ranges, strict=True)
    ]
    made: dict[int, _Made] = {}
    for number, result in (engine or _Here()).results(_pack_part, calls):
        made[number] = result
        parts = made.values()
        report(
            Progress(
                phase=f"packing, {len(made):,} of {len(calls):,} parts",
                read=len(made),
                total=len(calls),
                samples=sum(part.counts["samples"] for part in parts),
                tokens=sum(part.counts["tokens"] for part in parts),
            )
        )
    return _describe(request, folders, [made[number] for number in range(len(calls))])


def _pack_part(request: PackRequest, given: Given) -> _Made:
    summary = run(request, given=given, report=lambda progress: None, say=lambda line: None)
    counts = {name: getattr(summary, name) for name in _SUMMED}
    return _Made(counts, LengthHistogram.of(TokenStore(request.output).lengths))


def _describe(request: PackRequest, folders: list[Path], made: list[_Made]) -> PartStores:
    lengths = made[0].lengths
    for part in made[1:]:
        lengths = lengths.merge(part.lengths)
    lengths.save(request.output / LENGTHS_FILE)
    found = PartStores(
        stores=tuple(folder.name for folder in folders),
        **{name: sum(part.counts[name] for part in made) for name in _SUMMED},
        rows_together=_rows_together(request, lengths),
        lengths=FileEntry.of(request.output / LENGTHS_FILE),
    )
    write_bytes(request.output / PARTS_FILE, msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    return found


def _rows_together(request: PackRequest, lengths: LengthHistogram) -> int | None:
    if STRATEGIES[request.strategy].works_on != "histogram":
        return None
    return outline_with(lengths, request.spec).certificate.rows
