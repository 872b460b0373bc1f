"""Parity: logits, loss and parameter gradients of the packed row against the samples alone.

In float64 where a copy can be had, else in the model's own dtype; what rounding may explain is measured (`noise.py`).
"""

import math
from dataclasses import replace
from functools import reduce

from padless.auditing.context import Context, Seen
from padless.auditing.kinds import describe
from padless.auditing.layout import Layout
from padless.auditing.objective import Objective, objective, targets_of, tolerances, trained_samples
from padless.auditing.report import CheckResult
from padless.auditing.subject import NoLossError
from padless.auditing.visibility import compare_visibility


def check(context: Context) -> CheckResult:
    """Compare logits first, then loss and gradients."""
    logits = _logits(context)
    if logits.verdict != "proven":
        return logits
    try:
        return _objective(context, logits)
    except NoLossError:
        return replace(logits, notes=(*logits.notes, "no loss was given: loss and gradients were not compared"))


def _logits(context: Context) -> CheckResult:
    subject, layout = context.reference, context.layout
    packed = context.see(subject, context.inputs, layout=layout)
    tolerance = context.noise.tolerance
    scale = float(packed.logits.abs().max())
    worst, where, which = -1.0, "", 0
    differing: list[int] = []
    for i in range(len(context.samples)):
        inputs, own = context.alone(i)
        alone = context.see(subject, inputs, layout=own)
        a, b = layout.spans[i], own.spans[0]
        if a[1] - a[0] != b[1] - b[0]:
            return _result("undecided", f"alone, sample {i + 1} keeps {b[1] - b[0]} tokens; packed, {a[1] - a[0]}")
        difference = float((packed.logits[a[0] : a[1]] - alone.logits[b[0] : b[1]]).abs().max())
        if not (math.isfinite(difference) and math.isfinite(scale)):
            return _result("undecided", "logits are not finite")
        differing += [i] if difference > tolerance else []
        if difference > worst:
            worst, which = difference, i
            where = _first_difference(context, packed, a, alone, b, layout, own) if difference > tolerance else ""
    if tolerance > 0.5 * scale:
        return _result(
            "undecided",
            f"the model's own noise ({tolerance:.3g}) is as large as its logits ({scale:.3g}): is dropout on?",
            measured=worst,
            tolerance=tolerance,
        )
    dtype = str(subject.dtype).removeprefix("torch.")
    if worst <= tolerance:
        text = f"packed logits equal those alone to {worst:.2g} (logits up to {scale:.2g}, {dtype})"
        return _result("proven", text, measured=worst, tolerance=tolerance)
    isolation = context.results.get("isolation")
    if isolation is not None and isolation.mechanism:
        mechanism = isolation.mechanism
    elif context.results.get("positions") is not None and context.results["positions"].mechanism:
        mechanism = context.results["positions"].mechanism
    else:
        # The longest sample that differs shows most of the pattern.
        mechanism = compare_visibility(context, max(differing, key=lambda i: len(context.samples[i]["input_ids"])))
    text = f"sample {which + 1}'s logits differ by {worst:.3g} packed and alone ({dtype})"
    if where:
        text += f"; first in {describe(subject.model, where)}"
    return _result("violated", text, mechanism=mechanism, measured=worst, tolerance=tolerance, where=where)


def _first_difference(context: Context, packed: Seen, a: tuple, alone: Seen, b: tuple, row: Layout, own: Layout) -> str:
    for key, value in packed.trace.events.items():
        other = alone.trace.events.get(key)
        if other is None or value.shape[0] != row.slots or other.shape[0] != own.slots:
            continue
        one, two = value[a[0] : a[1]], other[b[0] : b[1]]
        if one.shape != two.shape:
            continue
        allowed = 10 * context.noise.growth * float(two.abs().max())
        if float((one - two).abs().max()) > allowed:
            return key[0] if key[1] == "out" else key[0].rpartition(".")[0]
    return ""


def _objective(context: Context, logits: CheckResult) -> CheckResult:
    subject = context.reference
    which = trained_samples(context)
    counts = {i: targets_of(context, [i]) for i in which}
    total = sum(counts.values())
    packed = objective(subject, context.inputs, total)
    alone = {i: objective(subject, context.alone(i)[0], total if subject.counts else counts[i]) for i in which}
    expected = _reductions(alone, counts, total, subject.counts)
    name, best = min(expected.items(), key=lambda item: packed.distance(item[1])[0])
    loss, gradient = packed.distance(best)
    allowed_loss, allowed_gradient = tolerances(context, packed, total)
    details = {
        "logits": {"measured": logits.measured, "tolerance": logits.tolerance},
        "loss": {"measured": loss, "tolerance": allowed_loss, "reduction": name},
        "gradients": {"measured": gradient, "tolerance": allowed_gradient},
    }
    if loss <= allowed_loss and gradient <= allowed_gradient:
        text = f"{logits.finding}; loss to {loss:.1g}, gradients to {gradient:.1g} (relative; loss is a {name})"
        return replace(logits, finding=text, details=details)
    if getattr(subject.run(context.inputs), "aux_loss", None) is not None and loss > allowed_loss:
        note = (
            "the loss holds an auxiliary term over the whole batch, which is no sum over samples; only logits compared"
        )
        return replace(logits, notes=(note,), details=details)
    broken_loss = loss > allowed_loss
    before = context.results.get("targets")
    mechanism = "loss-differs" if broken_loss else "gradients-differ"
    if broken_loss and before is not None and before.mechanism:
        mechanism = before.mechanism
    return _result(
        "violated",
        f"logits agree, but {'the loss' if broken_loss else 'gradients'} differ by "
        f"{loss if broken_loss else gradient:.3g} (relative)",
        mechanism=mechanism,
        measured=loss if broken_loss else gradient,
        tolerance=allowed_loss if broken_loss else allowed_gradient,
        details=details,
    )


def _reductions(
    alone: dict[int, Objective], counts: dict[int, int], total: int, counting: bool
) -> dict[str, Objective]:
    """What the packed loss may be, built from the samples' own."""

    def weighted(weights: dict[int, float]) -> Objective:
        return reduce(lambda a, b: a + b, (alone[i] * weights[i] for i in alone))

    plain = weighted(dict.fromkeys(alone, 1.0))
    if counting:
        return {"sum over the global number of targets": plain}
    return {
        "mean over targets": weighted({i: counts[i] / total for i in alone}),
        "mean over samples": weighted(dict.fromkeys(alone, 1 / len(alone))),
        "sum": plain,
    }


def _result(verdict, finding: str, **more) -> CheckResult:
    return CheckResult(name="parity", verdict=verdict, finding=finding, **more)
