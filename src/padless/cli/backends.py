"""`padless backends`: which attention kernels this machine can run, and why not."""

import json
from typing import Any

import click

OPTIONS = ("window", "softcap", "sinks", "dropout", "deterministic", "return_lse")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def command(as_json: bool) -> None:
    """Which attention kernels this machine can run, and why not.

    The order is that of preference on a GPU; `auto` takes the fastest that can do what is asked, by a cost model that
    `padless bench attention --calibrate` tunes to this machine.
    """
    from padless.errors import require

    require("torch", extra="torch", feature="padless backends")
    found = _backends()
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    width = max(len(entry["backend"]) for entry in found) + 2
    for entry in found:
        verdict = "usable" if entry["usable"] else f"no: {entry['why not']}"
        click.echo(f"{entry['backend']:{width}}{verdict}")
        click.echo(f"{'':{width}}{_abilities(entry)}")


def _backends() -> list[dict[str, Any]]:
    from padless.attention.backends import BACKENDS

    found = []
    for name, backend in BACKENDS.items():
        can, missing = backend.capability, backend.missing()
        found.append(
            {
                "backend": name,
                "usable": missing is None,
                "why not": missing,
                "summary": backend.summary,
                "devices": can.devices or "any",
                "dtypes": [str(dtype).removeprefix("torch.") for dtype in can.dtypes],
                "head size": can.max_head_size or "any",
                "window": "causal only" if can.window and not can.two_sided else can.window,
                "softcap": can.softcap,
                "sinks": can.sinks,
                "dropout": can.dropout,
                "backward": can.backward or True,
                "deterministic": can.deterministic,
                "return_lse": can.lse,
            }
        )
    return found


def _abilities(entry: dict[str, Any]) -> str:
    """One line of what a backend can do once it is there."""
    devices = "any device" if entry["devices"] == "any" else " ".join(entry["devices"])
    size = "" if entry["head size"] == "any" else f", heads to {entry['head size']}"
    options = [name if entry[name] is True else f"{name} ({entry[name]})" for name in OPTIONS if entry[name]]
    gradients = "" if entry["backward"] is True else f"; gradients on {' '.join(entry['backward'])} only"
    return f"{devices}, {' '.join(entry['dtypes'])}{size}; {', '.join(options)}{gradients}"
