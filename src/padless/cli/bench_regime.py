"""`padless bench regime`: whether projections or attention take the time, without measuring every arm."""

from pathlib import Path
from typing import Any

import click

from padless.cli._bench import data_options, model_options


@click.command()
@data_options
@model_options
def command(
    data: Path, model: str, repeats: int, as_json: bool, output: Path | None, quiet: bool, **options: Any
) -> None:
    """Say what bounds this model at these lengths, and what packing, batching by length or shorter samples would give.

    Fits the cost model to a few packed micro-batches and predicts the rest; `bench step` measures it.
    """
    from padless.cli import _bench
    from padless.cli import _bench_tables as shown
    from padless.cli._json import deliver
    from padless.measure import calibrate, regime

    setting = {name: options.pop(name) for name in ("dtype", "device", "threads")}
    with _bench.trainee(model, quiet=quiet or as_json, data=data, **setting) as (trainee, now):
        chosen = _bench.read_samples(data, trainee, **options)
        cost = calibrate(
            trainee, length=int(chosen.lengths.max()), capacity=chosen.capacity, repeats=repeats, progress=now
        )
    found = regime(cost, chosen.lengths, **chosen.shape)
    deliver(
        shown.to_json(trainee, data=chosen.said, cost=cost, regime=found, error=cost.residual),
        as_json=as_json,
        output=output,
    )
    if as_json:
        return
    shown.show_setting(trainee, chosen.said)
    shown.show_regime(cost, found, f"off by {cost.residual:.1%} (median over what it was fitted to)")
