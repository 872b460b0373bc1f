"""What `padless ablate` prints."""

from collections.abc import Sequence
from typing import Any

import click

from padless.cli._tables import console, table

LOG_WIDTH = 120  # a log is not a terminal: nothing is cut to 80 columns
HOLDS = {"masked everywhere": "nothing", "constant": "one picture", "real": "pictures"}
DONE = {"swap": "swapped", "mask": "masked"}
STYLES = {"lossless": "green", "candidate": "cyan", "load-bearing": "bold red", "undecided": "yellow"}


def show(found: Any) -> None:
    """One line per slot, then why."""
    acts = any(result.action_change is not None for result in found.results)
    hows = [how for how in ("swap", "mask") if how in found.settings["replacements"]]
    header = ["slot", "holds", "verdict", "tokens", "compute", *(f"loss if {DONE[how]}" for how in hows)]
    rows = [_row(result, hows, acts) for result in found.results]
    out = console()
    if not out.is_terminal:
        out.width = LOG_WIDTH
    out.print()
    out.print(table(header + ["actions"] * acts, rows, left=3))
    out.print()
    for result in found.results:
        click.echo(f"  {result.slot.name}: {result.reason}")
        if result.effects[0].tasks:
            name, worst = result.effects[0].worst
            click.echo(f"    worst of {len(result.effects[0].tasks)} tasks: {_change(worst)}, {name}")
    click.echo(
        f"\n  {found.samples:,} samples of {found.episodes:,} episodes, {found.draws} noise draws each; loss "
        f"{found.loss:.4f}; intervals of {found.confidence:.0%} over episodes; tolerance {found.tolerance:+.1%}"
    )


def show_power(needed: Sequence[Any]) -> None:
    """Episodes per arm for each drop that was asked for."""
    rows = [
        [f"{100 * one.drop:.1f} points", f"{one.episodes:,}", f"+-{100 * one.half_width:.2f} points"] for one in needed
    ]
    out = console()
    out.print()
    out.print(table(["drop to see", "episodes per arm", "interval then"], rows))
    first = needed[0]
    click.echo(
        f"\n  From a success rate of {first.success:.1%}, seen {first.power:.0%} of the time at {first.confidence:.0%} "
        "confidence. Fewer episodes without a difference prove nothing"
    )


def _row(result: Any, hows: Sequence[str], acts: bool) -> list[str]:
    slot, style = result.slot, STYLES[result.verdict]
    row = [
        slot.name,
        HOLDS[slot.kind] + (f" in {slot.present:.0%}" if 0 < slot.present < 1 else ""),
        f"[{style}]{result.verdict}[/]",
        f"{slot.tokens:,}",
        "-" if slot.compute is None else f"{slot.compute:.1%}",
        *(_change(result.effect(how).change) for how in hows),
    ]
    if acts:
        row.append("-" if result.action_change is None else f"{result.action_change:.1%}")
    return row


def _change(found: Any) -> str:
    """An interval in percent, as short as it can be read."""
    if found.low == found.high == 0:
        return "no change"
    digits = 0 if max(abs(found.low), abs(found.high)) >= 0.1 else 2
    return f"{100 * found.low:+.{digits}f} to {100 * found.high:+.{digits}f} %"
