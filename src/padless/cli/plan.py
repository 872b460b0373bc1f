"""`padless plan`: rows from lengths alone, or other rows for a store."""

import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from padless.cli import _plan_media as media
from padless.cli._plan_tables import show_comparison, show_plan

EPILOG = """\b
LENGTHS: .npy, .npz (a saved histogram), .json, .idx (Megatron), a column of .csv or .parquet, or a
store's folder.
A store gets the new plan beside its tokens; nothing is tokenized again."""

# What --compare leaves out: `lpfhp` is best-fit-decreasing under another name, `auto` is one of the others.
NOT_COMPARED = ("lpfhp", "auto")


@click.command(epilog=EPILOG)
@click.argument("lengths", type=click.Path(path_type=Path), metavar="LENGTHS")
@click.option("-c", "--capacity", required=True, type=int, metavar="N", help="Tokens in a row.")
@click.option("--column", metavar="NAME", help="Column of a table, or entry of a JSON object, that holds the lengths.")
@click.option("--strategy", default="best-fit-decreasing", show_default=True, help="How rows are planned.")
@click.option("--seed", default=0, show_default=True, help="Which samples share a row.")
@click.option("--align", default=1, show_default=True, help="Each segment takes a multiple of this many slots.")
@click.option("--max-segments", type=int, metavar="N", help="Most segments in a row. Default: no limit.")
@click.option(
    "--oversize",
    type=click.Choice(["error", "truncate", "split", "drop"]),
    default="error",
    show_default=True,
    help="What becomes of a sample longer than a row.",
)
@click.option("--window", type=int, metavar="W", help="Plan W shuffled samples at a time. Default: all at once.")
@click.option("--rows-per-step", default=8, show_default=True, help="Rows in a global batch, to count steps with.")
@click.option(
    "--views",
    type=click.Choice(["siglip-224", "qwen2.5-vl", "qwen3-vl"]),
    help="LENGTHS is a .jsonl or .parquet of text tokens and views; how views become tokens.",
)
@click.option(
    "--prune",
    "rules",
    multiple=True,
    metavar="RULE",
    help="Take visual tokens away: drop:VIEW, every:N[:VIEW], cap:PIXELS[:VIEW]. May be given again; needs --views.",
)
@click.option("--compare", is_flag=True, help="Show what every strategy would give; nothing is saved.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Save the plan here, as .npz.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def command(
    lengths: Path,
    column: str | None,
    rows_per_step: int,
    views: str | None,
    rules: tuple[str, ...],
    compare: bool,
    output: Path | None,
    as_json: bool,
    quiet: bool,
    **settings: Any,
) -> None:
    """Plan rows from lengths alone, or re-plan a store: waste before and after, and how good the plan is."""
    from padless.errors import PadlessError
    from padless.planning import PlanSpec

    if rows_per_step < 1:
        raise PadlessError(f"--rows-per-step is at least 1, not {rows_per_step}")
    if compare and output is not None:
        raise PadlessError("--compare saves nothing: leave out --output, or choose one --strategy")
    if rules and views is None:
        raise PadlessError("--prune needs --views, which says how views become tokens")
    spec = PlanSpec(**settings)
    store = _store(lengths)
    pruned = None if views is None else media.read_pruned(lengths, views, rules)
    values = _read(lengths, column, store) if pruned is None else pruned.after
    if compare:
        found = _compare(values, spec)
        if as_json:
            click.echo(json.dumps({name: made if isinstance(made, str) else _facts(*made) for name, made in found}))
        elif not quiet:
            show_comparison(found)
        return
    planned, seconds = _plan(values, spec)
    whole = None
    if pruned is not None and rules:
        planned, whole = replace(planned, pruning=rules), media.whole_plan(pruned, spec)
    saved = _save(planned, store, output)
    if as_json:
        pruning = {"pruning": media.pruning_facts(pruned, whole, planned)} if rules else {}
        click.echo(json.dumps(_facts(planned, seconds) | _more(planned, rows_per_step) | pruning, indent=2))
    elif not quiet:
        if rules:
            media.show_pruned(pruned, whole, planned)
        show_plan(planned, rows_per_step, seconds)
        if saved is not None:
            click.echo(f"\n  Wrote {saved}")


def _store(path: Path) -> Any:
    if not path.is_dir():
        return None
    from padless.corpus.store import TokenStore

    return TokenStore(path)


def _read(path: Path, column: str | None, store: Any) -> Any:
    from padless.lengths import read_lengths

    return read_lengths(path, column) if store is None else store.lengths


def _plan(values: Any, spec: Any) -> tuple[Any, float]:
    """A plan, or the outline of one where only a histogram is known; and how long it took."""
    from padless.lengths import LengthHistogram
    from padless.planning import outline_with, plan_with

    began = time.perf_counter()
    planned = outline_with(values, spec) if isinstance(values, LengthHistogram) else plan_with(values, spec)
    return planned, time.perf_counter() - began


def _compare(values: Any, spec: Any) -> list[tuple[str, Any]]:
    """Every strategy with the same settings; where one cannot run, why."""
    from padless.errors import PadlessError
    from padless.planning import STRATEGIES

    found: list[tuple[str, Any]] = []
    refused = 0
    for name in STRATEGIES:
        if name in NOT_COMPARED:
            continue
        try:
            found.append((name, _plan(values, replace(spec, strategy=name))))
        except PadlessError as error:
            found.append((name, str(error)))
            refused += 1
    if refused == len(found):
        raise PadlessError(found[0][1])
    return found


def _save(planned: Any, store: Any, output: Path | None) -> Path | None:
    from padless.errors import PadlessError
    from padless.planning import Plan

    if output is not None and not isinstance(planned, Plan):
        raise PadlessError("a histogram has no sample ids, so there is no plan to save; give the lengths themselves")
    if output is not None:
        planned.save(output)
        return output
    if store is not None:
        from padless.corpus.plans import plan_name

        store.add_plan(planned)
        return store.path / plan_name(planned.capacity)
    return None


def _facts(planned: Any, seconds: float) -> dict[str, Any]:
    books, certificate = planned.accounting, planned.certificate
    return {
        "rows": certificate.rows,
        "lower_bound": certificate.lower_bound,
        "bound_by": certificate.bound_by,
        "gap": certificate.gap,
        "efficiency": books.efficiency,
        "packing_factor": books.packing_factor,
        "slots": books.slots,
        "real_tokens": books.real_tokens,
        "tail_padding": books.tail_padding,
        "alignment_padding": books.alignment_padding,
        "split_samples": books.split_samples,
        "truncated_tokens": books.truncated_tokens,
        "dropped_samples": books.dropped_samples,
        "segments_per_row_max": books.segments_per_row_max,
        "seconds": seconds,
    }


def _more(planned: Any, rows_per_step: int) -> dict[str, Any]:
    from padless.lengths import steps
    from padless.planning import spread

    books = planned.accounting
    return {"spread": asdict(spread(planned)), "steps": asdict(steps(books.one_per_row(), books, rows_per_step))}
