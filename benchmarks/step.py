"""The tables of docs/performance.md: optimizer steps of a 20 million parameter llama, padded and packed.

    python benchmarks/step.py                                       prints all parts
    python benchmarks/step.py gsm8k savings                         some of them
    python benchmarks/step.py --write docs/performance.md           puts them between the marks in that file

Each part takes one to three minutes on two quiet cores. On a busy machine use `--threads 1 --cpu-time`: time that other
processes take is then left out, and the table says so.
"""

import argparse
import functools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from padless.frameworks.trainees import load_trainee
from padless.measure import Arm, StepResult, Trainee, arms, calibrate, measure_arms, measure_savings, regime
from padless.measure.calibrate import median_error, predict
from padless.measure.machine import machine, today
from padless.measure.savings import REPORTED, quadratic_from
from padless.measure.workloads import packed, pick

DATA = Path(os.environ.get("PADLESS_TEST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


def gsm8k(trainee: Trainee, **how: Any) -> str:
    found = json.loads((DATA / "token_lengths_cl100k.json").read_text())["gsm8k_train_qa"]["lengths"]
    return steps(trainee, np.array(found), count=24, length=512, batch=4, capacity=2048, **how)


def azure(trainee: Trainee, **how: Any) -> str:
    found = np.load(DATA / "azure_llm_2023_conv_lengths.npy").sum(axis=1)
    return steps(trainee, found, count=4, length=4096, batch=2, capacity=4096, **how)


def steps(
    trainee: Trainee, lengths: np.ndarray, *, count: int, length: int, batch: int, capacity: int, **how: Any
) -> str:
    """All arms on samples that stand for these lengths, and what the cost model says of them."""
    fitting = lengths[lengths <= length]
    sizes = fitting[pick(fitting, count)]
    shape = {"length": length, "batch": batch, "capacity": capacity}
    cost = calibrate(trainee, length=int(sizes.max()), capacity=capacity, **how)
    step = measure_arms(trainee, arms(sizes, **shape), _ids(trainee, sizes), **how)
    found = regime(cost, sizes, **shape)
    chosen = (
        f"{count} samples at equal steps through the {len(fitting):,} lengths of at most {length:,} "
        f"(of {len(lengths):,}), {sizes.sum():,} real tokens in every arm; batches of {batch}, packed rows of "
        f"{capacity:,}."
    )
    fitted = (
        f"Fitted here: `seconds = {cost.constant:.1e} * calls + {cost.linear:.2e} * tokens + {cost.quadratic:.2e} * "
        f"sum(length ** 2) + {cost.step:.1e}`, off by {median_error(cost, step):.0%} (median over the arms, which it "
        f"was not fitted to). Bound by {found.name}: attention takes {found.attention_real:.0%} of a packed step and "
        f"{found.attention_padded:.0%} of a padded one; it takes half from {found.crossover:,.0f} tokens on."
    )
    made = table(step, lambda result: f"{predict(cost, result.arm) / result.timing.median - 1:+.0%}")
    advice = [f"- {line}" for line in found.advice()]
    return "\n".join([chosen, "", *made, "", fitted, "", *advice])


def rows(trainee: Trainee, **how: Any) -> str:
    """Transformers' own packed path with sdpa against padless: one row of samples of about 200 tokens."""
    lines = []
    for tokens in (2048, 8192):
        sizes = _about_200(tokens)
        work = packed(sizes, capacity=tokens)
        step = measure_arms(
            trainee,
            [Arm(name="dense mask", work=work, way="dense"), Arm(name="padless", work=work, way="packed")],
            _ids(trainee, sizes),
            **how,
        )
        lines += [f"One row of {tokens:,} tokens, {len(sizes)} samples:", "", *table(step), ""]
    return "\n".join(lines[:-1])


def savings(trainee: Trainee, **how: Any) -> str:
    """The savings curve in short rows, and the ends of it in long ones."""
    lines = []
    for length, batch, paddings in ((512, 4, (0.03, 0.1, 0.25, 0.5, 0.75, 0.9)), (4096, 1, (0.5, 0.9))):
        cost = calibrate(trainee, length=length, capacity=batch * length, **how)
        curve = measure_savings(trainee, cost, length=length, paddings=paddings, count=2 * batch, batch=batch, **how)
        saved = [point.time_saved for point in curve]
        lines += [
            f"Rows of {length:,}, {2 * batch} samples:",
            "",
            "| padding | padded, s | packed, s | saved | by the cost model | reported | of ideal | over dynamic |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for point in curve:
            reported = [f"{value:.2%}" for rate, value in REPORTED.items() if abs(rate - point.padding) < 0.005]
            lines.append(
                f"| {point.padding:.1%} | {point.padded:.2f} | {point.packed:.2f} | {point.time_saved:.2%} | "
                f"{point.predicted:.2%} | {''.join(reported)} | {point.ideal_share:.0%} | {point.over_dynamic:.2f} |"
            )
        seen = (
            f"{'Monotone' if saved == sorted(saved) else 'Not monotone'}. The quadratic regime begins at rows of "
            f"{quadratic_from(cost):,.0f} tokens: from there, half of them padding, packing saves 5 points more than "
            "the padding it removes."
        )
        lines += ["", seen, ""]
    return "\n".join(lines[:-1])


PARTS: dict[str, Callable[..., str]] = {"gsm8k": gsm8k, "azure": azure, "rows": rows, "savings": savings}


def table(step: StepResult, predicted: Callable[[Any], str] | None = None) -> list[str]:
    """Every arm, those that lost included."""
    lines = []
    for result in step.arms:
        cells = {
            "arm": result.arm.name,
            "padding": f"{result.arm.work.padding:.1%}",
            "step, s": f"{result.timing.median:.2f}",
            "spread": f"{result.timing.spread:.0%}",
            "real tokens/s": f"{result.real_tokens_per_second:,.0f}",
            "ratio": f"{step.ratio(result):.2f}x",
        }
        if step.padding:
            cells["of ideal"] = f"{step.share(result):.0%}"
        cells["peak MiB"] = "-" if result.peak_memory is None else f"{result.peak_memory / 2**20:,.0f}"
        if predicted is not None:
            cells["model"] = predicted(result)
        lines.append(cells)
    return [f"| {' | '.join(cells)} |" for cells in (lines[0], ["---"] * len(lines[0]), *(c.values() for c in lines))]


def _about_200(tokens: int) -> np.ndarray:
    """Log-normal lengths of mean 200 that add up to `tokens`."""
    rng = np.random.default_rng(0)
    sizes: list[int] = []
    while sum(sizes) < tokens:
        sizes.append(int(np.clip(rng.lognormal(np.log(200) - 0.5, 1.0), 8, tokens)))
    sizes[-1] -= sum(sizes) - tokens
    return np.array(sizes)


def _ids(trainee: Trainee, sizes: np.ndarray) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, trainee.vocabulary, size) for size in sizes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all when none is given")
    parser.add_argument("--model", default="llama-20m")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="measure CPU time instead of time on the clock")
    parser.add_argument("--write", type=Path, help="a file with a pair of marks per part to write between")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown or not DATA.is_dir():
        raise SystemExit(f"no part {', '.join(unknown)}" if unknown else f"no data at {DATA}; set PADLESS_TEST_DATA")
    torch.set_num_threads(arguments.threads)
    trainee = load_trainee(arguments.model)
    how = {
        "repeats": arguments.repeats,
        "clock": time.process_time if arguments.cpu_time else time.perf_counter,
        "progress": functools.partial(print, file=sys.stderr),
    }
    for name in arguments.parts or PARTS:
        made = PARTS[name](trainee, **how)
        clock = "CPU time, because the machine was busy" if arguments.cpu_time else "time on the clock"
        said = (
            f"{trainee.name}, {trainee.size / 1e6:.1f} M parameters, float32, medians of {arguments.repeats}, {clock}; "
        )
        made = f"{made}\n\n{said}{machine()}; {today()}."
        if arguments.write is None:
            print(f"\n## {name}\n\n{made}", flush=True)
        else:
            write(arguments.write, name, made)


def write(path: Path, part: str, made: str) -> None:
    begin, end = f"<!-- {part}: begin -->", f"<!-- {part}: end -->"
    before, rest = path.read_text().split(begin)
    path.write_text(f"{before}{begin}\n{made}\n{end}{rest.split(end)[1]}")


if __name__ == "__main__":
    main()
