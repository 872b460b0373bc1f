"""`padless simulate`: what schedules of global batches gain on a cluster that need not be there."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import numpy as np

    from padless.measure.cost import CostModel
    from padless.training.scheduling import SchedulingSpec

EPILOG = """\b
LENGTHS: .npy, .npz (a saved histogram), .json, a column of .csv or .parquet, a store's folder;
or log-normal:MEDIAN:SIGMA:LONGEST, long-tail (log-normal:2048:1.5:131072),
long-context (log-normal:1024:1.6:131072).
Communication is not simulated: what differs between schedules is how work is shared out."""

LEGEND = """\
  step s: seconds of a mean step, without communication. lockstep: the same where
  ranks meet after every micro-batch. speed: tokens/s beside the fastest. idle:
  waiting, of all ranks' time. ranks: max / mean work of ranks. micro: the same
  of micro-batches. GiB: activations of the fullest rank. late: steps that a
  token waits on average."""


@click.command(epilog=EPILOG)
@click.argument("lengths")
@click.option("--ranks", type=click.IntRange(min=1), default=64, show_default=True, help="Devices of the cluster.")
@click.option("--cp", type=click.IntRange(min=1), default=1, show_default=True, help="Context-parallel ranks.")
@click.option("--pp", type=click.IntRange(min=1), default=1, show_default=True, help="Pipeline stages.")
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor-parallel ranks.")
@click.option("--schedule", "names", multiple=True, metavar="NAME", help="A schedule; may be repeated. Default: all.")
@click.option(
    "--global-batch", type=click.IntRange(min=1), default=1024, show_default=True, help="Samples that arrive a step."
)
@click.option("--steps", type=click.IntRange(min=1), default=20, show_default=True, help="Steps to simulate.")
@click.option(
    "--max-seqlen-per-rank",
    type=click.IntRange(min=1),
    metavar="N",
    help="Most slots of a micro-batch on a rank. Default: what the longest sample takes of each of its --cp ranks.",
)
@click.option("--max-num-seqs", type=click.IntRange(min=1), metavar="N", help="Most samples in a micro-batch.")
@click.option(
    "--align", type=click.IntRange(min=1), default=1, show_default=True, help="Slots of a sample: a multiple."
)
@click.option(
    "--microbatch-multiple", type=click.IntRange(min=1), default=1, show_default=True, help="Of virtual stages."
)
@click.option("--sizes", default="power-of-two", show_default=True, help="Groups of dynamic-cp: power-of-two or free.")
@click.option("--max-delay", type=click.IntRange(min=0), default=1, show_default=True, help="Steps that wlb may wait.")
@click.option("--model", default="7b", show_default=True, help="What a token costs: 1b, 7b, 13b or 70b.")
@click.option("--tflops", type=float, default=400.0, show_default=True, help="What a device sustains, in TFLOP/s.")
@click.option(
    "--cost", nargs=2, type=float, metavar="LINEAR QUADRATIC", help="Seconds a token and a squared one, instead."
)
@click.option("--column", metavar="NAME", help="Column of a table, or entry of a JSON object, with the lengths.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Which samples come when.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    lengths: str,
    names: tuple[str, ...],
    global_batch: int,
    steps: int,
    column: str | None,
    seed: int,
    as_json: bool,
    model: str,
    tflops: float,
    cost: tuple[float, float] | None,
    tp: int,
    **cluster: Any,
) -> None:
    """Simulate training steps: time, imbalance, waiting and memory under each schedule of global batches."""
    from padless.errors import PadlessError
    from padless.measure.distributions import draw
    from padless.measure.simulate import SHAPES, simulate
    from padless.training.scheduling import SCHEDULERS

    if model not in SHAPES:
        raise PadlessError(f"no model is called {model!r}; there are {', '.join(SHAPES)}, or --cost LINEAR QUADRATIC")
    if not tflops > 0:
        raise PadlessError(f"--tflops {tflops}: expected what a device sustains, above 0")
    drawn = draw(_source(lengths, column), steps * global_batch, seed=seed)
    seconds = _cost(SHAPES[model].cost(tflops=tflops, tensor_parallel=tp), cost, tp)
    spec = _spec(seconds, drawn, tp=tp, **cluster)
    found, refused = [], {}
    for name in names or SCHEDULERS:
        per_slot = SHAPES[model].bytes_per_slot(tensor_parallel=tp)
        try:
            found.append(simulate(drawn, spec, name, global_batch=global_batch, cost=seconds, bytes_per_slot=per_slot))
        except PadlessError as error:
            if names:  # asked for, so a reason is no footnote
                raise
            refused[name] = str(error)
    if not found:
        raise PadlessError(next(iter(refused.values())))
    facts = _facts(lengths, drawn, spec, tp=tp, global_batch=global_batch, cost=seconds)
    if as_json:
        click.echo(json.dumps(facts | {"schedules": [asdict(made) for made in found], "refused": refused}, indent=2))
    else:
        _show(facts, found, refused)


def _source(lengths: str, column: str | None) -> Any:
    from padless.lengths import read_lengths
    from padless.measure.distributions import is_distribution

    if is_distribution(lengths):
        return lengths
    if Path(lengths).is_dir():
        from padless.corpus.store import TokenStore

        return TokenStore(lengths).lengths
    return read_lengths(lengths, column)


def _cost(by_shape: "CostModel", given: tuple[float, float] | None, tp: int) -> "CostModel":
    from padless.measure.cost import CostModel

    if given is None:
        return by_shape
    return CostModel(constant=0.0, linear=given[0] / tp, quadratic=given[1] / tp)


def _spec(
    cost: "CostModel",
    drawn: "np.ndarray",
    *,
    ranks: int,
    cp: int,
    pp: int,
    tp: int,
    max_seqlen_per_rank: int | None,
    **limits: Any,
) -> "SchedulingSpec":
    from padless.errors import PadlessError
    from padless.training.scheduling import Cost, SchedulingSpec

    apart = cp * pp * tp
    if ranks % apart:
        raise PadlessError(
            f"{ranks:,} ranks do not divide into --cp {cp} x --pp {pp} x --tp {tp} = {apart}; "
            f"give --ranks {max(ranks // apart, 1) * apart} or {(ranks // apart + 1) * apart}"
        )
    work = Cost(linear=cost.linear, quadratic=cost.quadratic)
    spec = SchedulingSpec(
        dp=ranks // apart,
        cp=cp,
        pp=pp,
        max_seqlen_per_rank=max_seqlen_per_rank or 1 << 40,
        cost=work,
        empty="allow",
        **limits,
    )
    if max_seqlen_per_rank is None:
        from dataclasses import replace

        return replace(spec, max_seqlen_per_rank=int(spec.padded(drawn).max()) // cp)
    return spec


def _facts(
    source: str, drawn: "np.ndarray", spec: "SchedulingSpec", *, tp: int, global_batch: int, cost: "CostModel"
) -> dict[str, Any]:
    import numpy as np

    sizes = {"dp": spec.dp, "cp": spec.cp, "pp": spec.pp, "tp": tp}
    return {
        "lengths": {
            "source": source,
            "mean": float(drawn.mean()),
            "median": float(np.median(drawn)),
            "longest": int(drawn.max()),
        },
        "cluster": {"ranks": spec.ranks * spec.pp * tp, **sizes},
        "max_seqlen_per_rank": spec.max_seqlen_per_rank,
        "align": spec.unit,
        "global_batch": global_batch,
        "seconds_per_token": cost.linear,
        "seconds_per_squared_token": cost.quadratic,
    }


def _show(facts: dict[str, Any], found: list[Any], refused: dict[str, str]) -> None:
    from padless.cli._tables import console, table

    lengths, cluster = facts["lengths"], facts["cluster"]
    sizes = [f"{name} {cluster[name]}" for name in ("dp", "cp", "pp", "tp") if cluster[name] > 1]
    click.echo(f"\n  {cluster['ranks']:,} ranks{' = ' if sizes else ''}{' x '.join(sizes)}")
    click.echo(f"  Micro-batches of at most {facts['max_seqlen_per_rank']:,} slots a rank")
    click.echo(
        f"  {facts['global_batch']:,} samples a step from {lengths['source']}: mean {lengths['mean']:,.0f} tokens, "
        f"median {lengths['median']:,.0f}, longest {lengths['longest']:,}\n"
    )
    fastest = max(made.tokens_per_second for made in found)
    header = ["schedule", "step s", "lockstep", "speed", "idle", "ranks", "micro", "GiB", "late"]
    console().print(table(header, [_row(made, fastest) for made in found]))
    click.echo(f"\n{LEGEND}")
    for made in found:
        if made.empty:
            click.echo(
                f"  {made.strategy}: {made.empty:,} empty micro-batches in {made.steps} steps; padding runs there"
            )
    for name, reason in refused.items():
        click.echo(f"  {name}: {reason}")


def _row(made: Any, fastest: float) -> list[str]:
    return [
        made.strategy,
        f"{made.step_seconds:#.3g}",
        f"{made.lockstep_seconds:#.3g}",
        f"{made.tokens_per_second / fastest:.2f}",
        f"{made.idle:.1%}",
        f"{made.imbalance:.3f}",
        f"{made.microbatch_imbalance:.3f}",
        f"{made.peak_bytes / 2**30:.1f}",
        f"{made.waited:.2f}",
    ]
