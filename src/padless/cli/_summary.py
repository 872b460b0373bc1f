"""What `padless pack` prints at its end: before and after, what was cut, how good the rows are, what is next."""

from pathlib import Path

import click

from padless.cli._tables import console, table
from padless.corpus.part_stores import PartStores
from padless.corpus.summary import Summary
from padless.training.steps import advice


def show(summary: Summary, output: Path | str) -> None:
    """Print the summary for a person."""
    out = console()
    out.print()
    out.print(table(["", "padded", "packed"], _before_after(summary)))
    out.print()
    for line in _lines(summary):
        click.echo(f"  {line}")
    click.echo(f"\n  Wrote {output}" + (f" in {summary.seconds:.1f} s" if summary.seconds else "") + ". Next:")
    width = max(len(line) for line, _ in _next(output, summary.capacity))
    for line, why in _next(output, summary.capacity):
        click.echo(f"    {line:{width}}  # {why}")


def _before_after(summary: Summary) -> list[list[str]]:
    books = summary.plan.accounting
    before = summary.slots_before
    return [
        ["rows", f"{books.segments:,}", f"{books.rows:,}"],
        [f"slots (rows x {summary.capacity:,})", f"{before:,}", f"{books.slots:,}"],
        ["real tokens", f"{books.real_tokens:,}", f"{books.real_tokens:,}"],
        ["tail padding", f"{before - books.real_tokens:,}", f"{books.tail_padding:,}"],
        ["alignment padding", "0", f"{books.alignment_padding:,}"],
        ["waste", f"{summary.padding_before:.2%}", f"{books.waste_rate:.2%}"],
        ["samples per row", "1.0", f"{books.packing_factor:.1f}"],
    ]


def _lines(summary: Summary) -> list[str]:
    counts = (
        f"{summary.samples:,} samples, {summary.tokens:,} tokens, of which {summary.targets:,} are targets and "
        f"{summary.eod_tokens:,} EOD"
    )
    return [counts, str(summary.plan.certificate), *_losses(summary), advice(summary.plan.accounting)]


def show_parts(made: PartStores, output: Path) -> None:
    """What a store for each part holds, and what planning them apart costs."""
    first, last = made.stores[0], made.stores[-1]
    lines = [
        f"{len(made.stores):,} stores in {output}, {first} to {last}: {made.samples:,} samples, {made.tokens:,} tokens",
        f"{made.rows:,} rows, planned part by part",
    ]
    if made.rows_together is not None:
        more = made.rows - made.rows_together
        lines.append(
            f"One plan over all of them would have {made.rows_together:,}: {more:,} rows more ({made.cost:.3%})"
        )
    for what in ("truncated", "split", "dropped"):
        if count := getattr(made, f"{what}_samples"):
            tokens = getattr(made, f"{what}_tokens", None)
            lines.append(f"{what.capitalize()}: {count:,} samples" + ("" if tokens is None else f", {tokens:,} tokens"))
    if made.rejected_records:
        lines.append(f"Rejected: {made.rejected_records:,} records, each with its reason in its part's rejected.jsonl")
    for line in lines:
        click.echo(f"  {line}")


def _losses(summary: Summary) -> list[str]:
    """One line for each thing that did not come through whole; silence means that everything did."""
    lines = []
    if summary.truncated_samples:
        lines.append(
            f"Cut: {summary.truncated_samples:,} samples lost {summary.truncated_tokens:,} tokens at their end "
            f"(the store keeps them; no EOD was put in their place)"
        )
    if summary.split_samples:
        lines.append(f"Split: {summary.split_samples:,} samples lie in several pieces")
    if summary.dropped_samples:
        lines.append(f"Dropped: {summary.dropped_samples:,} samples, {summary.dropped_tokens:,} tokens")
    if summary.trained.targets != summary.targets:
        lines.append(f"Of the targets, {summary.trained.targets:,} are in rows")
    if summary.trained.without_target:
        lines.append(f"{summary.trained.without_target:,} cut samples have no target left: they train nothing")
    if summary.rejected_records:
        lines.append(f"Rejected: {summary.rejected_records:,} records, each with its reason in rejected.jsonl")
    inside = summary.eod_tokens - summary.samples
    if summary.manifest.encoding.eod and inside:
        lines.append(f"{inside:,} EOD stand inside samples, because the text or the record itself holds that token")
    if summary.notes.surplus_eod:
        lines.append(f"Left out: {summary.notes.surplus_eod:,} surplus EOD at the end of samples")
    if summary.notes.straddling:
        lines.append(f"{summary.notes.straddling:,} tokens straddle prompt and target; they are targets")
    return lines


def _next(output: Path | str, capacity: int) -> list[tuple[str, str]]:
    if isinstance(output, str):
        code = f"from padless.corpus.remote import download; download({output!r}, 'store')"
        return [(f'python -c "{code}"', "a copy that can be read")]
    return [
        (f"padless verify {output}", "check every promise"),
        (f"padless inspect {output} --row 0", "look at a row"),
        (f"padless plan {output} --capacity {2 * capacity}", "other rows from the same tokens"),
        (f"padless report {output} -o report.html", "one page that shows it"),
    ]
