"""`padless plan --views`: lengths of samples with views by arithmetic, and what pruning rules take away."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from padless.cli._tables import console, table

SIZES = {"siglip-224": "SIGLIP_224", "qwen2.5-vl": "QWEN2_5_VL", "qwen3-vl": "QWEN3_VL"}


def read_pruned(path: Path, sizes: str, rules: tuple[str, ...]) -> Any:
    """Tokens of every sample before and after the rules."""
    from padless.lengths.media_table import read_media_table
    from padless.rows import grids
    from padless.rows.pruning import PruningRule, prune

    return prune(read_media_table(path), [PruningRule.parse(rule) for rule in rules], getattr(grids, SIZES[sizes]))


def whole_plan(pruned: Any, spec: Any) -> Any:
    """The plan of the samples as they are, to compare with; a sample longer than a row is counted, not refused."""
    from padless.planning import plan_with

    return plan_with(pruned.before, replace(spec, oversize="drop") if spec.oversize == "error" else spec)


def pruning_facts(pruned: Any, before: Any, after: Any) -> dict[str, Any]:
    """For JSON."""
    figures = {
        name: dict(zip(("before", "after"), values, strict=True)) for name, values in _figures(pruned, before, after)
    }
    return {
        "rules": [str(rule) for rule in pruned.rules],
        "sizes": asdict(pruned.sizes),
        "views": pruned.views,
        **figures,
    }


def show_pruned(pruned: Any, before: Any, after: Any) -> None:
    """Tokens of each view, then rows and cost, before and after the rules."""

    def less(was: float, left: float) -> str:
        return f"{1 - left / was:.1%}" if was else "-"

    out = console()
    views = [[f"tokens of {name}", *(f"{n:,}" for n in both), less(*both)] for name, both in pruned.views.items()]
    books = [[name, *(f"{n:,.0f}" for n in both), less(*both)] for name, both in _figures(pruned, before, after)]
    out.print()
    out.print(table(["", "as it is", "pruned", "less"], views + books))
    dropped = before.accounting.dropped_samples
    if dropped:
        click.echo(f"\n  As it is, {dropped:,} samples are longer than a row and are not in that column")
    click.echo(
        f"\n  Pruned by {', '.join(map(str, pruned.rules))}. These tokens are real: what is lost without them, "
        "`padless ablate` measures"
    )


def _figures(pruned: Any, before: Any, after: Any) -> list[tuple[str, tuple[float, float]]]:
    """What costs: rows, tokens (projections, MLP), squared lengths (attention), and FLOPs where the model is known."""
    books = before.accounting, after.accounting
    figures = [
        ("rows", (books[0].rows, books[1].rows)),
        ("real tokens", (books[0].real_tokens, books[1].real_tokens)),
        ("attention pairs (n^2)", (2 * books[0].score_elements, 2 * books[1].score_elements)),
    ]
    if pruned.sizes.side is not None:
        figures.append(("GFLOP forward, sizes of pi0.5", (_gflop(pruned, 0), _gflop(pruned, 1))))
    return figures


def _gflop(pruned: Any, side: int) -> float:
    """Of the prefixes of all samples: towers, projections and MLPs by tokens, attention by squared lengths."""
    from padless.measure.vla_cost import PI05_COST

    lengths = (pruned.before, pruned.after)[side].astype(float)
    seen = sum(both[side] for both in pruned.views.values())
    flops = PI05_COST.flops(views=seen / PI05_COST.view_tokens, prompt=lengths.sum() - seen, suffix=0)
    return (flops.tower + flops.linear + PI05_COST.language.attention((lengths**2).sum())) / 1e9
