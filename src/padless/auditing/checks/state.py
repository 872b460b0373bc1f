"""State: nothing may pass from one call to the next, nor through recurrent, convolutional, expert or norm layers."""

from padless.auditing.carrying import carried_between_calls
from padless.auditing.context import Context
from padless.auditing.kinds import describe, stateful_layers
from padless.auditing.report import CheckResult

_OF_STATE = {
    "state-carried-over", "missing-seq-idx", "convolution-crosses-boundary", "batch-statistics", "experts-mix",
}  # fmt: skip


def check(context: Context) -> CheckResult:
    """Call with other data in between; then say which layers could carry something, and whether they do."""
    subject = context.reference
    moved, noise = carried_between_calls(context, subject)
    if moved > noise:
        return _result(
            "violated",
            f"the same row comes out {moved:.3g} different after a call with other tokens",
            mechanism="state-between-calls",
            measured=moved,
            tolerance=noise,
        )
    isolation = context.results.get("isolation")
    if isolation is not None and isolation.mechanism in _OF_STATE:
        return _result(
            "violated",
            f"segments mix in {describe(subject.model, isolation.where)}",
            mechanism=isolation.mechanism,
            measured=isolation.measured,
            tolerance=isolation.tolerance,
            where=isolation.where,
        )
    layers = stateful_layers(subject.model)
    if not layers:
        return _result(
            "proven", "nothing passes between calls; no layer keeps a state", measured=moved, tolerance=noise
        )
    listed = ", ".join(f"{count} {kind}" for kind, count in layers.items())
    if isolation is None or isolation.verdict == "undecided":
        return _result("undecided", f"there are layers that can carry state ({listed}), and isolation is not decided")
    return _result(
        "proven",
        f"nothing passes between calls, nor through layers that could carry it ({listed})"
        if isolation.verdict == "proven"
        else f"nothing passes between calls; the leak is not one of state ({listed})",
        measured=moved,
        tolerance=noise,
    )


def _result(verdict, finding: str, **more) -> CheckResult:
    return CheckResult(name="state", verdict=verdict, finding=finding, **more)
