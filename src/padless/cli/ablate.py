"""`padless ablate`: which camera or media slots a model could do without, and how many episodes it takes to know."""

import json
from typing import Any

import click

EPILOG = """\b
Verdicts:
  lossless      masked in every sample: leave it out, nothing changes
  candidate     the loss is not above the tolerance, for all samples and every task: train without it, compare rollouts
  load-bearing  the loss is above the tolerance
  undecided     the interval includes the tolerance: more episodes, or more noise draws

\b
Exit codes: 0 measured, 1 a masked slot changes the loss, 2 wrong use."""


@click.command(epilog=EPILOG)
@click.argument("subject", required=False)
@click.option("--tolerance", default=0.01, show_default=True, help="Relative change in loss that is acceptable.")
@click.option("--draws", default=2, show_default=True, help="Noise and time-step draws per sample.")
@click.option(
    "--replace",
    type=click.Choice(["both", "swap", "mask"]),
    default="both",
    show_default=True,
    help="What is put in a view's place: another episode's picture, or nothing.",
)
@click.option("--confidence", default=0.95, show_default=True, help="Of the intervals.")
@click.option("--resamples", default=2000, show_default=True, help="Bootstrap resamples of episodes.")
@click.option("--seed", default=0, show_default=True)
@click.option("--success", type=float, help="Success rate, 0 to 1: count the episodes that a drop from it needs.")
@click.option(
    "--drop", "drops", type=float, multiple=True, help="Drop to see, 0.01 is one point; may be given again.  [0.01]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def command(
    subject: str | None,
    replace: str,
    success: float | None,
    drops: tuple[float, ...],
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Measure what each camera or media slot costs, and what is lost without it.

    SUBJECT is module:function, which returns a `padless.measure.ablation.Ablatable`: held-out samples and a callback
    that gives their losses under a change. Try padless.frameworks.pi05.worked:small_policy.

    With --success, alone or beside SUBJECT, it counts the rollouts that it takes to see a drop in success rate.
    """
    if subject is None and success is None:
        raise click.UsageError("give SUBJECT, or --success to count episodes, or both")
    if drops and success is None:
        raise click.UsageError("--drop needs --success: how many episodes it takes depends on the rate")
    found = _measure(subject, replace, quiet=quiet or as_json, **options) if subject is not None else None
    needed = _needed(success, drops or (0.01,), options["confidence"]) if success is not None else []
    if as_json:
        from dataclasses import asdict

        result = {} if found is None else found.to_dict()
        click.echo(json.dumps(result | ({"episodes": [asdict(one) for one in needed]} if needed else {}), indent=2))
        return
    if quiet:
        return
    from padless.cli import _ablate_tables as shown

    if found is not None:
        shown.show(found)
    if needed:
        shown.show_power(needed)


def _measure(subject: str, replace: str, *, quiet: bool, **options: Any) -> Any:
    from padless.cli._progress import progress
    from padless.errors import require
    from padless.measure.ablation import ablate

    require("torch", extra="torch", feature="padless ablate")
    replacements: Any = ("swap", "mask") if replace == "both" else (replace,)
    with progress(quiet) as shown:
        shown.update(f"making {subject}", None, "")
        made = _made(subject)
        return ablate(made, replacements=replacements, progress=lambda what: shown.update(what, None, ""), **options)


def _made(subject: str) -> Any:
    from padless.errors import PadlessError
    from padless.frameworks.auditables import returned
    from padless.measure.ablation import Ablatable

    made = returned(subject)
    if not isinstance(made, Ablatable):
        raise PadlessError(
            f"{subject}() returned {type(made).__name__}; expected a padless.measure.ablation.Ablatable (for pi0-type "
            "policies padless.frameworks.pi05.ablating.policy_ablation makes one)"
        )
    return made


def _needed(success: float, drops: tuple[float, ...], confidence: float) -> list[Any]:
    from padless.measure.ablation_power import episodes_needed

    return [episodes_needed(success, drop, confidence=confidence) for drop in drops]
