"""`padless export`: write packed rows in other people's formats."""

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from padless.cli._progress import progress

if TYPE_CHECKING:
    from padless.frameworks.export import Export

FORMATS = ("parquet", "jsonl", "arrow", "trl", "nemo", "megatron")


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
    written = 0
    with progress(quiet or as_json) as shown:

        def advance(rows: int) -> None:
            nonlocal written
            written += rows
            shown.update("exporting", written / len(dataset), f"{written:,} of {len(dataset):,} rows")

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
