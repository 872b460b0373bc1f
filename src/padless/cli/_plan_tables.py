"""What `padless plan` prints."""

from typing import Any

import click

from padless.cli._tables import console, table


def show_plan(planned: Any, rows_per_step: int, seconds: float) -> None:
    """Waste before and after, the certificate, what was cut, how random the rows are, what steps become."""
    out = console()
    out.print()
    out.print(table(["", "padded", "packed"], _before_after(planned)))
    out.print()
    for line in [str(planned.certificate), *_losses(planned), *_spread(planned), _steps(planned, rows_per_step)]:
        click.echo(f"  {line}")
    click.echo(f"  Planned by {planned.spec.strategy} in {seconds:.3f} s")


def show_comparison(found: list[tuple[str, Any]]) -> None:
    """One line per strategy against the best bound that any of them proved; reasons where one could not run."""
    made = [(name, *result) for name, result in found if not isinstance(result, str)]
    whole = [planned for _, planned, _ in made if planned.spec.strategy != "concat"]
    best = max((planned.certificate for planned in whole), key=lambda c: c.lower_bound, default=None)
    rows = []
    for name, planned, seconds in made:
        books = planned.accounting
        bound = best.lower_bound if best and name != "concat" else planned.certificate.lower_bound
        gap = (books.rows - bound) / bound
        cells = [f"{books.rows:,}", f"{books.efficiency:.3%}", f"{books.packing_factor:.3f}", f"{gap:.3%}"]
        rows.append([name, *cells, f"{books.split_samples:,}", f"{seconds:.3f}"])
    out = console()
    out.print()
    out.print(table(["strategy", "rows", "efficiency", "per row", "gap", "cut", "seconds"], rows))
    out.print()
    if best:
        click.echo(f"  No plan of whole samples has fewer than {best.lower_bound:,} rows ({best.bound_by})")
    for name, result in found:
        if isinstance(result, str):
            click.echo(f"  {name}: {result}")


def _before_after(planned: Any) -> list[list[str]]:
    after = planned.accounting
    before = after.one_per_row()
    return [
        ["rows", f"{before.rows:,}", f"{after.rows:,}"],
        [f"slots (rows x {after.capacity:,})", f"{before.slots:,}", f"{after.slots:,}"],
        ["real tokens", f"{before.real_tokens:,}", f"{after.real_tokens:,}"],
        ["tail padding", f"{before.tail_padding:,}", f"{after.tail_padding:,}"],
        ["alignment padding", f"{before.alignment_padding:,}", f"{after.alignment_padding:,}"],
        ["waste", f"{before.waste_rate:.2%}", f"{after.waste_rate:.2%}"],
        ["samples per row", f"{before.packing_factor:.2f}", f"{after.packing_factor:.2f}"],
        ["causal scores (n^2 / 2)", f"{before.padded_score_elements:,.0f}", f"{after.score_elements:,.0f}"],
    ]


def _losses(planned: Any) -> list[str]:
    books, lines = planned.accounting, []
    if books.truncated_samples:
        lines.append(f"Cut: {books.truncated_samples:,} samples lost {books.truncated_tokens:,} tokens at their end")
    if books.split_samples:
        lines.append(f"Split: {books.split_samples:,} samples lie in several pieces")
    if books.dropped_samples:
        lines.append(f"Dropped: {books.dropped_samples:,} samples, {books.dropped_tokens:,} tokens")
    return lines


def _spread(planned: Any) -> list[str]:
    from padless.planning import spread

    found = spread(planned)

    def line(what: str, packed: Any, shuffled: Any) -> str:
        beside = f"; filled in random order {shuffled.mean:,.1f} +- {shuffled.std:,.1f}" if shuffled else ""
        return f"{what} per row {packed.mean:,.1f} +- {packed.std:,.1f} ({packed.least:,} to {packed.most:,}){beside}"

    lines = [
        line("Segments", found.segments, found.random_segments),
        line("Possible targets (all tokens but a segment's first)", found.targets, found.random_targets),
    ]
    if found.moved is not None:
        lines.append(f"Samples moved {found.moved:.0%} as far from the data's order as a shuffle moves them")
    return lines


def _steps(planned: Any, rows_per_step: int) -> str:
    from padless.lengths import steps

    found = steps(planned.accounting.one_per_row(), planned.accounting, rows_per_step)
    return (
        f"At {rows_per_step:,} rows per step: {found.steps_before:,} steps of {found.tokens_before:,.0f} tokens become "
        f"{found.steps_after:,} of {found.tokens_after:,.0f}; "
        f"{found.rows_for_same_tokens:.2f} rows per step hold as many tokens as before"
    )
