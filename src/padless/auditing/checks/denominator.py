"""Denominator: the same samples in one batch, over accumulation steps, and over ranks must train the same.

Steps and ranks are played in this process, as trainers do it: a loss that is told the global number of targets is
summed over all parts; any other is averaged over them, as `loss / steps` and DDP do.
"""

from functools import reduce

from padless.auditing.context import Context
from padless.auditing.objective import Objective, objective, targets_of, tolerances, trained_samples
from padless.auditing.report import CheckResult
from padless.auditing.subject import NoLossError


def check(context: Context) -> CheckResult:
    """Compare one batch with two unequal steps, and with two ranks of two unequal steps."""
    which = sorted(trained_samples(context), key=lambda i: targets_of(context, [i]))
    if len(which) < 2:
        return _result("not-applicable", "fewer than two samples have targets")
    subject, total = context.reference, targets_of(context, which)
    try:
        whole = objective(subject, context.inputs, total)
    except NoLossError as error:
        return _result("not-applicable", str(error))
    allowed_loss, allowed_gradient = tolerances(context, whole, total)
    splits = {"2 accumulation steps": [which[:1], which[1:]]}
    splits["2 ranks"] = [which[:-1], which[-1:]]
    if len(which) >= 4:
        splits["2 ranks x 2 steps"] = [which[:1], which[1:2], which[2:3], which[3:]]
    details = {}
    worst = (0.0, 0.0, "")
    for name, parts in splits.items():
        found, weighted = _combined(context, parts, total)
        loss, gradient = whole.distance(found)
        details[name] = {"loss": loss, "gradients": gradient, "targets": [targets_of(context, p) for p in parts]}
        if loss > allowed_loss or gradient > allowed_gradient:
            return _named(context, name, whole, found, weighted, (allowed_loss, allowed_gradient), details)
        worst = max(worst, (gradient, loss, name))
    convention = "summed over the global number of targets" if subject.counts else "averaged over steps and ranks"
    return _result(
        "proven",
        f"{', '.join(splits)} train as one batch does: loss to {worst[1]:.1g}, gradients to {worst[0]:.1g} "
        f"({convention})",
        measured=worst[0],
        tolerance=allowed_gradient,
        details=details,
    )


def _combined(context: Context, parts: list[list[int]], total: int) -> tuple[Objective, Objective]:
    """What training gets from the parts, and what it would get if each counted by its targets."""
    subject = context.reference
    found = []
    for part in parts:
        inputs = subject.collate([context.samples[i] for i in part])
        count = total if subject.counts else targets_of(context, part)
        found.append(objective(subject, inputs, count))
    share = 1.0 if subject.counts else 1 / len(parts)
    sums = reduce(lambda a, b: a + b, (f * share for f in found))
    by_targets = reduce(
        lambda a, b: a + b, (f * (targets_of(context, p) / total) for f, p in zip(found, parts, strict=True))
    )
    return sums, by_targets


def _named(context, name, whole, found, weighted, allowed, details) -> CheckResult:
    loss, gradient = whole.distance(found)
    first = [check for check in ("isolation", "targets", "positions", "parity") if _is_violated(context, check)]
    if first:
        text = f"{name} differ from one batch, as they must with {' and '.join(first)} violated"
        return _result("undecided", text, details=details)
    explained = whole.distance(weighted)
    means = explained[0] <= allowed[0] and explained[1] <= allowed[1]
    counts = details[name]["targets"]
    return _result(
        "violated",
        f"{name} with {counts} targets differ from one batch: loss by {loss:.2%}, gradients by {gradient:.2%}",
        mechanism="mean-of-means" if means else "wrong-denominator",
        measured=max(loss, gradient),
        tolerance=max(allowed),
        details=details,
    )


def _is_violated(context: Context, check: str) -> bool:
    return check in context.results and context.results[check].verdict == "violated"


def _result(verdict, finding: str, **more) -> CheckResult:
    return CheckResult(name="denominator", verdict=verdict, finding=finding, **more)
