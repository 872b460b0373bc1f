"""`padless bench attention`: packed attention against what it replaces, on this machine."""

import json
from pathlib import Path

import click


@click.command()
@click.option("--tokens", type=click.IntRange(min=64), default=8192, show_default=True, help="Tokens of a row.")
@click.option("--heads", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--head-size", type=click.IntRange(min=8), default=64, show_default=True)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32", show_default=True)
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads; all by default.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True, help="Medians are shown.")
@click.option(
    "--calibrate", is_flag=True, help="Tune the cost model behind `backend=auto` to this machine, and save it."
)
@click.option("--json", "as_json", is_flag=True, help="Print the measurements as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(
    tokens: int,
    heads: int,
    head_size: int,
    dtype: str,
    threads: int | None,
    repeats: int,
    calibrate: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Time packed attention, forward and backward, against the dense mask and the padded batch it replaces."""
    from padless.errors import require

    require("torch", extra="torch", feature="padless bench attention")
    from padless.cli._progress import progress
    from padless.measure import attention

    with progress(quiet or as_json) as shown, attention.threads(threads):
        say = lambda text: shown.update(text, None, "")  # noqa: E731 - two words in one place
        if calibrate:
            costs, where = attention.calibrate(heads=heads, size=head_size, repeats=repeats, progress=say)
            _show_costs(costs, where, as_json=as_json)
            return
        results = attention.measure(
            tokens=tokens, heads=heads, size=head_size, dtype=dtype, repeats=repeats, progress=say
        )
    if as_json:
        click.echo(json.dumps([result.as_dict() for result in results], indent=2))
        return
    from padless.cli._tables import console, table

    console().print(table(attention.HEADER, [result.row() for result in results]))
    click.echo("milliseconds of forward and backward, medians; in brackets, how many times as long as padless")


def _show_costs(costs: dict, where: Path, *, as_json: bool) -> None:
    from dataclasses import asdict

    numbers = {name: asdict(cost) for name, cost in costs.items()}
    if as_json:
        click.echo(json.dumps(numbers, indent=2))
        return
    for name, cost in numbers.items():
        click.echo(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in cost.items()))
    click.echo(f"saved to {where}")
