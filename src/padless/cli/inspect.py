"""`padless inspect`: look at rows, or find where a sample went."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from padless.corpus import TokenStore
    from padless.planning import Plan

SHOWN_TOKENS = 120  # of a segment's text, half from each end, unless --full


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--row", type=int, help="Show this row. Default: row 0.")
@click.option("--sample", type=int, metavar="ID", help="Show every row that holds a piece of this sample.")
@click.option("--capacity", type=int, help="Which saved plan; the only one unless given.")
@click.option("--full", is_flag=True, help="Show whole texts, not their beginnings and ends.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(store: Path, row: int | None, sample: int | None, capacity: int | None, full: bool, as_json: bool) -> None:
    """Look at rows in the terminal: segments, positions, text with targets marked, padding and why it is left."""
    from padless.corpus import TokenStore
    from padless.errors import PadlessError

    opened = TokenStore(store)
    plan = opened.plan(capacity)
    if row is not None and sample is not None:
        raise PadlessError("give --row or --sample, not both")
    if sample is not None:
        rows = _rows_of(plan, sample, len(opened))
    else:
        rows = [0 if row is None else row]
        if not 0 <= rows[0] < plan.num_rows:
            raise PadlessError(f"row {rows[0]} of a plan of {plan.num_rows:,} rows; rows count from 0")
    found = [_describe(opened, plan, index) for index in rows]
    if as_json:
        click.echo(json.dumps({"rows": found}, indent=2))
        return
    if sample is not None:
        _say_where(opened, plan, sample, rows)
    for described in found:
        _show(opened, described, full)


def _rows_of(plan: "Plan", sample: int, samples: int) -> list[int]:
    import numpy as np

    from padless.errors import PadlessError

    if not 0 <= sample < samples:
        raise PadlessError(f"sample {sample} of a store of {samples:,} samples; samples count from 0")
    segments = np.flatnonzero(plan.sample_ids == sample)
    return np.unique(np.searchsorted(plan.row_offsets, segments, side="right") - 1).tolist()


def _describe(store: "TokenStore", plan: "Plan", index: int) -> dict[str, Any]:
    """One row in plain values."""
    ids, starts, lengths = (part.tolist() for part in plan.row(index))
    align = plan.spec.align
    segments, slot = [], 0
    for sample_id, start, length in zip(ids, starts, lengths, strict=True):
        name, record = store.source_of(sample_id)
        tokens, targets = store.gather([sample_id], [start], [length])
        width = -(-length // align) * align
        segments.append(
            {
                "sample": sample_id,
                "source": name,
                "record": record,
                "slots": [slot, slot + length],
                "piece": [start, start + length, int(store.lengths[sample_id])],
                "tokens": tokens.tolist(),
                "targets": targets.tolist(),
                "alignment_padding": width - length,
            }
        )
        slot += width
    tail = plan.capacity - slot
    return {
        "row": index,
        "rows": plan.num_rows,
        "capacity": plan.capacity,
        "segments": segments,
        "tail_padding": tail,
    }


def _say_where(store: "TokenStore", plan: "Plan", sample: int, rows: list[int]) -> None:
    name, record = store.source_of(sample)
    length = int(store.lengths[sample])
    origin = f"sample {sample}: record {record} of {name}, {length:,} tokens"
    if not rows:
        click.echo(f"{origin}; in no row: longer than {plan.spec.limit:,} tokens and the policy is drop")
        return
    cut = length - plan.spec.limit if plan.spec.oversize == "truncate" and length > plan.spec.limit else 0
    lost = f", its last {cut:,} tokens in none" if cut else ""
    click.echo(f"{origin}; in row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows))}{lost}")


def _show(store: "TokenStore", row: dict[str, Any], full: bool) -> None:
    from padless.corpus.tokenizer_files import open_tokenizer
    from padless.errors import PadlessError

    try:
        tokenizer = open_tokenizer(store.path, store.manifest)
    except PadlessError:
        tokenizer = None  # made from arrays: ids are all there is to show
    segments = row["segments"]
    used = sum(slot_end - slot for slot, slot_end in (segment["slots"] for segment in segments))
    alignment = sum(segment["alignment_padding"] for segment in segments)
    click.secho(f"\nrow {row['row']}", bold=True, nl=False)
    click.echo(
        f"  {used:,} of {row['capacity']:,} slots hold {len(segments)} segments; "
        f"{row['tail_padding']:,} tail padding, {alignment:,} alignment padding"
    )
    for number, segment in enumerate(segments, 1):
        _show_segment(number, segment, tokenizer, full)
    if row["tail_padding"]:
        why = "every sample is in this row" if row["rows"] == 1 else "no piece that was left to place was short enough"
        click.secho(f"\n  {row['tail_padding']:,} slots of tail padding: {why}", dim=True)


def _show_segment(number: int, segment: dict[str, Any], tokenizer: Any, full: bool) -> None:
    first, end = segment["slots"]
    start, stop, whole = segment["piece"]
    piece = "" if stop - start == whole else f", tokens {start:,}..{stop:,} of {whole:,}"
    click.echo(
        f"\n  segment {number}  slots {first:,}..{end:,}, positions 0..{end - first - 1:,}, "
        f"{sum(segment['targets']):,} targets  "
        + click.style(f"sample {segment['sample']}{piece} ({segment['source']}:{segment['record']})", dim=True)
    )
    for text, is_target in _runs(segment["tokens"], segment["targets"], tokenizer, full):
        margin = "  > " if is_target else "    "  # the mark that survives where colours do not
        click.echo("\n".join(margin + _styled(line, is_target) for line in text.split("\n")))
    if segment["alignment_padding"]:
        click.secho(f"    {segment['alignment_padding']} slots of alignment padding", dim=True)


def _styled(line: str, is_target: bool) -> str:
    return click.style(line, fg="green", bold=True) if is_target else line


def _runs(tokens: list[int], targets: list[bool], tokenizer: Any, full: bool) -> list[tuple[str, bool]]:
    """Neighbouring tokens that are all targets or all not, decoded together; a long run loses its middle."""
    runs: list[tuple[str, bool]] = []
    begin = 0
    for at in range(1, len(tokens) + 1):
        if at == len(tokens) or targets[at] != targets[begin]:
            runs.append((_text(tokens[begin:at], tokenizer, full), targets[begin]))
            begin = at
    return runs


def _text(ids: list[int], tokenizer: Any, full: bool) -> str:
    def decode(part: list[int]) -> str:
        return " ".join(map(str, part)) if tokenizer is None else tokenizer.decode(part)

    if full or len(ids) <= SHOWN_TOKENS:
        return decode(ids)
    half = SHOWN_TOKENS // 2
    left_out = f"\n[... {len(ids) - 2 * half:,} tokens, --full shows them ...]\n"
    return decode(ids[:half]) + left_out + decode(ids[-half:])
