"""`padless bench step`: optimizer steps, padded and packed, on the user's lengths."""

from pathlib import Path
from typing import Any

import click

from padless.cli._bench import data_options, model_options


@click.command()
@data_options
@model_options
@click.option("--savings", is_flag=True, help="Measure the savings curve too, which a report shows.")
def command(
    data: Path, model: str, repeats: int, as_json: bool, output: Path | None, quiet: bool, savings: bool, **options: Any
) -> None:
    """Train padded and packed on the same samples: real tokens per second, memory, and what to expect elsewhere.

    Arms: padded to a fixed length; to the longest of each batch, without and with an attention mask; batched by
    length; packed with the framework's dense mask; packed with padless. Every arm does one optimizer step on the same
    samples, and must come to the same loss.
    """
    from padless.cli import _bench
    from padless.cli import _bench_tables as shown
    from padless.cli._json import deliver
    from padless.measure import arms, calibrate, measure_arms, measure_savings, regime
    from padless.measure.calibrate import median_error

    setting = {name: options.pop(name) for name in ("dtype", "device", "threads")}
    with _bench.trainee(model, quiet=quiet or as_json, data=data, **setting) as (trainee, now):
        chosen = _bench.read_samples(data, trainee, **options)
        longest = int(chosen.lengths.max())
        cost = calibrate(trainee, length=longest, capacity=chosen.capacity, repeats=repeats, progress=now)
        step = measure_arms(trainee, arms(chosen.lengths, **chosen.shape), chosen.ids, repeats=repeats, progress=now)
        curve = ()
        if savings:
            curve = measure_savings(
                trainee,
                cost,
                length=chosen.length,
                batch=chosen.batch,
                count=2 * chosen.batch,
                repeats=repeats,
                progress=now,
            )
    found, error = regime(cost, chosen.lengths, **chosen.shape), median_error(cost, step)
    results = {"step": step, "cost": cost, "regime": found, "error": error, "savings": curve}
    deliver(shown.to_json(trainee, data=chosen.said, **results), as_json=as_json, output=output)
    if as_json:
        return
    shown.show_setting(trainee, chosen.said)
    shown.show_steps(step, cost)
    shown.show_regime(cost, found, f"off by {error:.1%} (median over the arms, to none of which it was fitted)")
    if curve:
        click.echo()
        shown.show_savings(curve, cost, chosen.length)
