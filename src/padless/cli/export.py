"""`padless export`: write packed rows in other people's formats."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from padless.frameworks.export import Export

FORMATS = ("parquet", "jsonl", "arrow", "trl", "nemo", "megatron")
LOG_EVERY = 5.0  # seconds


@click.command("export")
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--to", "to", type=click.Choice(FORMATS), required=True, help="Whose format.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="A new folder; STORE-FORMAT unless given.")
@click.option("-c", "--capacity", type=int, metavar="N", help="Which saved plan; the only one unless given.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors (and --json).")
def command(store: Path, to: str, output: Path | None, capacity: int | None, as_json: bool, quiet: bool) -> None:
    """Write the rows of STORE, as one of its plans has them, in another format.

    parquet, jsonl and arrow hold input_ids, labels, position_ids, seq_lengths and sample_ids. trl is parquet for
    SFTTrainer with padding_free=True. nemo is parquet for NeMo and Megatron-Bridge. megatron is .idx and .bin for
    Megatron-Core, with a loss mask beside them.
    """
    from padless.frameworks.export import export
    from padless.training import PackedDataset

    dataset = PackedDataset(store, plan=capacity, align=1)
    folder = output or _beside(store, to)
    started = time.perf_counter()
    with _progress(len(dataset), show=not (quiet or as_json)) as advance:
        done = export(dataset, folder, to=to, progress=advance)
    if as_json:
        click.echo(json.dumps(done.to_dict() | {"seconds": time.perf_counter() - started}))
    elif not quiet:
        click.echo(_summary(done, time.perf_counter() - started))


def _beside(store: Path, to: str) -> Path:
    """`out-trl` beside `out`, also when the store is named as `.` or `..`."""
    whole = store.resolve()
    return Path(os.path.relpath(whole.with_name(f"{whole.name}-{to}")))


def _summary(done: "Export", seconds: float) -> str:
    held = f"{done.rows:,} rows, {done.segments:,} segments, {done.tokens:,} tokens, {done.targets:,} targets"
    lines = [f"{done.folder}: {held} as {done.to} in {seconds:.1f} s"]
    if done.left_out_segments:
        lines.append(
            f"left out: {done.left_out_segments:,} segments of one token, which {done.to} cannot hold and which have "
            f"no target, and {done.rows - done.lines:,} rows that held nothing else"
        )
    if done.targets_lost:
        lines.append(f"not trained on: {done.targets_lost:,} tokens that begin a piece of a split sample")
    return "\n".join(lines)


@contextmanager
def _progress(rows: int, *, show: bool) -> Iterator[Any]:
    """A bar on a terminal, a line every few seconds elsewhere."""
    if not show:
        yield lambda _: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("rows", total=rows)
            yield lambda count: bar.advance(task, count)
    else:
        yield _logger(rows)


def _logger(rows: int) -> Any:
    done, next_line = 0, time.monotonic() + LOG_EVERY

    def advance(count: int) -> None:
        nonlocal done, next_line
        done += count
        if time.monotonic() >= next_line:
            click.echo(f"padless: {done:,} of {rows:,} rows", err=True)
            next_line = time.monotonic() + LOG_EVERY

    return advance
