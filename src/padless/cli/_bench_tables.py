"""Results of `padless bench`: tables for people, and the JSON that `padless report` reads."""

import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from padless.measure import CostModel, Regime, SavingPoint, StepResult, Trainee


def to_json(
    trainee: "Trainee",
    *,
    data: str,
    step: "StepResult | None" = None,
    cost: "CostModel | None" = None,
    regime: "Regime | None" = None,
    error: float | None = None,
    savings: "tuple[SavingPoint, ...]" = (),
) -> str:
    """The results in the words of `padless.report.given.Bench`."""
    import msgspec

    from padless.measure.machine import machine, today
    from padless.report import given

    bench = given.Bench(
        arms=() if step is None else tuple(_arm(step, result) for result in step.arms),
        savings=tuple(given.Saving(padding=point.padding, time_saved=point.time_saved) for point in savings),
        regime=None
        if regime is None or cost is None
        else given.Regime(
            name=regime.name,
            constant=cost.constant,
            linear=cost.linear,
            quadratic=cost.quadratic,
            error=error,
            advice=regime.advice(),
        ),
        ideal_ratio=None if step is None else step.ideal_ratio,
        machine=machine(trainee.device),
        date=today(),
        model=describe(trainee),
        data=data,
        command=shlex.join(["padless", *sys.argv[1:]]),
    )
    return msgspec.json.format(msgspec.json.encode(bench), indent=2).decode()


def _arm(step: "StepResult", result: Any) -> Any:
    from padless.report import given

    work = result.arm.work
    return given.Arm(
        name=result.arm.name,
        seconds=result.timing.median,
        real_tokens_per_second=result.real_tokens_per_second,
        peak_memory=result.peak_memory,
        ratio=step.ratio(result),
        note=f"{work.slots:,} slots, {work.padding:.1%} padding, "
        f"{work.calls} micro-batch{'es' if work.calls > 1 else ''}",
    )


def describe(trainee: "Trainee") -> str:
    """A model in a line."""
    dtype = str(trainee.parameters[0].dtype).removeprefix("torch.")
    return f"{trainee.name}, {trainee.size / 1e6:.1f} M parameters, {dtype}"


def show_setting(trainee: "Trainee", data: str) -> None:
    """What was measured, where and when."""
    from padless.measure.machine import machine, today

    click.echo(f"{describe(trainee)}; {data}")
    click.echo(f"{machine(trainee.device)}; {today()}\n")


def show_steps(step: "StepResult", cost: "CostModel") -> None:
    """The arms as a table."""
    from padless.cli._tables import console, table
    from padless.measure.calibrate import predict

    rows = []
    for result in step.arms:
        work = result.arm.work
        peak = "-" if result.peak_memory is None else f"{result.peak_memory / 2**20:,.0f}"
        expected = predict(cost, result.arm)
        rows.append(
            [
                result.arm.name,
                f"{work.padding:.1%}",
                f"{result.timing.median:.3f}",
                f"{result.real_tokens_per_second:,.0f}",
                f"{step.ratio(result):.2f}x",
                f"{step.share(result):.0%}",
                peak,
                f"{expected / result.timing.median - 1:+.0%}",
            ]
        )
    header = ["arm", "padding", "seconds", "tokens/s", "ratio", "ideal", "MiB", "model"]
    console().print(table(header, rows))
    spread = max(result.timing.spread for result in step.arms)
    click.echo(
        f"tokens/s: real ones; repetitions of an arm differ by up to {spread:.0%}. ratio: against the first line.\n"
        f"ideal: share of {step.ideal_ratio:.2f} = 1 / (1 - {step.padding:.1%}); above 100 %, attention saved more "
        "than the slots.\nMiB: peak of a step. model: predicted / measured - 1"
    )


def show_regime(cost: "CostModel", regime: "Regime", checked: str) -> None:
    """The cost model and what it says of these lengths."""
    click.echo(
        f"\nseconds = {cost.constant:.2e} x calls + {cost.linear:.2e} x tokens + {cost.quadratic:.2e} x sum(length^2)"
        f" + {cost.step:.2e}"
    )
    click.echo(checked)
    click.echo(
        f"bound by {regime.name}: attention takes {regime.attention_real:.0%} of a packed step, "
        f"{regime.attention_padded:.0%} of a padded one; {_half(regime.crossover)}"
    )
    for line in regime.advice():
        click.echo(f"- {line}")


def show_savings(curve: "tuple[SavingPoint, ...]", cost: "CostModel", length: int) -> None:
    """The savings curve as a table, with what a published report has at its ends."""
    from padless.cli._tables import console, table
    from padless.measure.savings import REPORTED, quadratic_from

    rows = [
        [
            f"{point.padding:.1%}",
            f"{point.padded:.3f}",
            f"{point.packed:.3f}",
            f"{point.time_saved:.2%}",
            f"{point.predicted:.2%}",
            next((f"{saved:.2%}" for rate, saved in REPORTED.items() if abs(rate - point.padding) < 0.005), ""),
            f"{point.ideal_share:.0%}",
            f"{point.over_dynamic:.2f}",
        ]
        for point in curve
    ]
    header = ["padding", "padded s", "packed s", "saved", "model", "reported", "ideal", "/ dynamic"]
    console().print(table(header, rows, left=0))
    click.echo(
        "model: what the cost model predicts. reported: arXiv 2603.11101, its own hardware and lengths.\n"
        "ideal: ratio of times as a share of 1 / (1 - padding). / dynamic: packed time over dynamically padded\n"
        f"{_quadratic(quadratic_from(cost))}; rows here have {length:,}"
    )


def _half(crossover: float) -> str:
    if crossover == float("inf"):
        return "its quadratic part is too small to be measured at these lengths"
    return f"it takes half from lengths of {crossover:,.0f} on"


def _quadratic(begins: float) -> str:
    if begins == float("inf"):
        return "the quadratic regime begins beyond what these lengths can show"
    return (
        f"the quadratic regime begins at rows of {begins:,.0f} tokens: from there, half of them padding,\n"
        "packing saves 5 points more than the padding it removes"
    )
