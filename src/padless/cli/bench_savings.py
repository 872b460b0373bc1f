"""`padless bench savings`: time saved at 3 to 90 % padding."""

from pathlib import Path
from typing import Any

import click

from padless.cli._bench import model_options


@click.command()
@click.option("--length", type=click.IntRange(min=16), default=512, show_default=True, help="Slots of a padded row.")
@click.option("--batch", type=click.IntRange(min=1), default=4, show_default=True, help="Rows of a micro-batch.")
@click.option("--samples", type=click.IntRange(min=1), default=8, show_default=True, help="Samples at each rate.")
@model_options
def command(
    length: int,
    batch: int,
    samples: int,
    model: str,
    repeats: int,
    as_json: bool,
    output: Path | None,
    quiet: bool,
    **setting: Any,
) -> None:
    """Measure the savings curve, beside what a published report measured and what the cost model expects.

    At each rate the same samples are trained padded to --length, padded to the longest of their batch, and packed.
    """
    from padless.cli import _bench
    from padless.cli import _bench_tables as shown
    from padless.cli._json import deliver
    from padless.measure import calibrate, measure_savings

    with _bench.trainee(model, quiet=quiet or as_json, **setting) as (trainee, now):
        cost = calibrate(trainee, length=length, capacity=batch * length, repeats=repeats, progress=now)
        curve = measure_savings(trainee, cost, length=length, batch=batch, count=samples, repeats=repeats, progress=now)
    said = f"{samples} samples at each rate, padded to {length:,} in batches of {batch}"
    deliver(shown.to_json(trainee, data=said, savings=curve), as_json=as_json, output=output)
    if as_json:
        return
    shown.show_setting(trainee, said)
    shown.show_savings(curve, cost, length)
