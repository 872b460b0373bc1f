"""Positions: do they restart, does this architecture care, are there enough axes, is a learned table long enough?"""

import numpy as np
import torch

from padless.auditing.context import Context
from padless.auditing.report import CheckResult
from padless.auditing.subject import FailedError, entry, with_entries

OFFSET = 3


def check(context: Context) -> CheckResult:
    """Compare the row's positions with those of the samples alone; without any, compare two orders of the row."""
    positions = entry(context.inputs, "position_ids")
    if positions is None:
        return _by_order(context)
    axes = _axes(context, positions)
    if context.position_axes and axes < context.position_axes:
        return _result(
            "violated",
            f"position_ids of shape {tuple(positions.shape)} have {axes} axis, the model rotates by "
            f"{context.position_axes}",
            mechanism="position-axes",
            measured=float(axes),
        )
    restarts, wrong = _offsets(context, positions, axes)
    cares, moved = _offset_sensitivity(context)
    care = {
        True: "this architecture depends on absolute positions",
        False: "this architecture does not care for a constant offset",
        None: "the model refuses shifted positions, so it could not be asked whether it cares",
    }
    notes = [care[cares]]
    notes += _limits(context)
    details = {"offset_response": moved if moved < float("inf") else None, "axes": axes}
    if wrong:
        return _result(
            "violated",
            f"inside segment {wrong[0] + 1} positions are not those of the sample alone",
            mechanism="positions-wrong",
            details=details,
        )
    late = [i for i, offset in enumerate(restarts) if offset]
    if not late:
        text = "positions restart in every segment, as alone"
        return _result("proven", text, measured=0.0, tolerance=0.0, notes=tuple(notes), details=details)
    text = f"segment {late[0] + 1} starts {restarts[late[0]]:+d} beside its own first position"
    if cares is False:
        notes.insert(0, f"{text}; harmless here, since only distances count")
        text = "positions do not restart, and this architecture does not care"
        return _result("proven", text, measured=moved, tolerance=context.noise.tolerance, notes=tuple(notes))
    return _result(
        "violated" if cares else "undecided",
        f"{text}; an offset of {OFFSET} moves logits by {moved:.3g}" if cares else text,
        mechanism="positions-not-reset" if cares else "",
        measured=moved,
        tolerance=context.noise.tolerance,
        details=details,
    )


def _axes(context: Context, positions: torch.Tensor) -> int:
    return positions.numel() // context.layout.slots


def _by_axis(positions: torch.Tensor, slots: int) -> np.ndarray:
    """`[axes, slots]` of `[T]`, `[R, L]`, `[A, T]` or `[A, R, L]`."""
    return positions.detach().cpu().numpy().reshape(-1, slots)


def _offsets(context: Context, positions: torch.Tensor, axes: int) -> tuple[list[int], list[int]]:
    """Each sample's constant offset against itself alone, and the samples for which it is not constant."""
    packed = _by_axis(positions, context.layout.slots)
    offsets, wrong = [], []
    for i, (start, stop) in enumerate(context.layout.spans):
        given = context.samples[i].get("position_ids")
        if given is not None and axes == len(np.atleast_2d(given)):
            alone = np.atleast_2d(given)
        else:
            inputs, layout = context.alone(i)
            first, last = layout.spans[0]
            alone = _by_axis(entry(inputs, "position_ids"), layout.slots)[:, first:last]
        difference = packed[:, start:stop] - alone[:, : stop - start]
        offsets.append(int(difference[0, 0]))
        if (difference != difference[0, 0]).any():
            wrong.append(i)
    return offsets, wrong


def _offset_sensitivity(context: Context) -> tuple[bool | None, float]:
    """Whether shifting all positions of one sample alone moves its logits; None when it cannot be run."""
    longest = max(range(len(context.samples)), key=lambda i: len(context.samples[i]["input_ids"]))
    inputs, layout = context.alone(longest)
    subject = context.reference
    base = context.see(subject, inputs, layout=layout)
    moved_inputs = with_entries(inputs, {"position_ids": entry(inputs, "position_ids") + OFFSET})
    try:
        moved = context.see(subject, moved_inputs, layout=layout)
    except FailedError as error:
        # Out of a learned table: absolute positions. Anything else: the model refuses, and cannot be asked.
        return (True if isinstance(error.__cause__, IndexError) else None), float("inf")
    size = float((moved.logits - base.logits).abs().max())
    return size > context.noise.tolerance, size


def _limits(context: Context) -> list[str]:
    config = getattr(context.subject.model, "config", None)
    limit = getattr(config, "max_position_embeddings", None)
    if isinstance(limit, int) and limit:
        return [f"the config allows {limit} positions per segment; a row may be longer, a sample may not"]
    return []


def _by_order(context: Context) -> CheckResult:
    """No positions are passed: the model makes its own. Put the samples in another order and compare."""
    subject = context.reference
    isolation = context.results.get("isolation")
    if isolation is not None and isolation.verdict != "proven":
        return _result("undecided", "no position_ids are passed, and without isolation the model's own cannot be told")
    order = [*range(1, len(context.samples)), 0]
    samples = [context.samples[i] for i in order]
    inputs = subject.collate(samples)
    layout = subject.layout(inputs, samples)
    base = context.see(subject, context.inputs, layout=context.layout)
    turned = context.see(subject, inputs, layout=layout)
    worst, which = 0.0, 0
    for place, i in enumerate(order):
        a, b = context.layout.spans[i], layout.spans[place]
        size = float((base.logits[a[0] : a[1]] - turned.logits[b[0] : b[1]]).abs().max())
        worst, which = max((worst, which), (size, i))
    tolerance = context.noise.tolerance
    if worst <= tolerance:
        text = "no position_ids are passed; samples come out the same wherever they stand in the row"
        return _result("proven", text, measured=worst, tolerance=tolerance)
    return _result(
        "violated",
        f"no position_ids are passed, and sample {which + 1} moves by {worst:.3g} when it stands elsewhere",
        mechanism="positions-not-reset",
        measured=worst,
        tolerance=tolerance,
    )


def _result(verdict, finding: str, **more) -> CheckResult:
    return CheckResult(name="positions", verdict=verdict, finding=finding, **more)
