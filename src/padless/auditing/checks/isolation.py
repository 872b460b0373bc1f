"""Isolation by perturbation: change the tokens of one segment; nothing of any other may move.

Needs no reference run and works in any dtype: both passes have the same shapes, so what does not depend on the changed
tokens is equal to the bit. It runs in the model's own dtype and, where a float64 copy can be had, in float64 too, in
evaluation and in training mode: bfloat16 rounds small leaks away, and some layers mix only while training.
"""

from padless.auditing.context import Context
from padless.auditing.kinds import describe
from padless.auditing.naming import name_leak
from padless.auditing.report import CheckResult
from padless.auditing.scan import Scan, scan
from padless.auditing.subject import Subject

# A model whose own logits move by less than this part of their size cannot show that others stand still.
DEAD = 1e-6


def check(context: Context) -> CheckResult:
    """Perturb every segment in every stage."""
    if len(context.samples) < 2:
        return CheckResult(name="isolation", verdict="not-applicable", finding="one segment has nothing to leak to")
    scans: list[tuple[Scan, Subject, bool]] = []
    for subject, train in _stages(context):
        dtype = str(subject.dtype).removeprefix("torch.")
        stage = f"{dtype}, {'train' if train else 'eval'}"
        scans.append((scan(context, subject, stage=stage, train=train, draws=1 if train else 2), subject, train))
        if not scans[-1][0].finite:
            return _undecided(f"logits are not finite ({stage}); a NaN moves nothing and proves nothing", scans)
    for found, subject, train in scans:
        if found.leaky:
            return _violated(context, found, subject, train, scans)
    return _hidden(context, scans) or _dead(scans) or _proven(context, scans)


def _stages(context: Context) -> list[tuple[Subject, bool]]:
    subjects = [context.subject]
    if context.precise is not None and context.precise is not context.subject:
        subjects.insert(0, context.precise)
    return [(subject, train) for subject in subjects for train in (False, True)]


def _violated(
    context: Context, found: Scan, subject: Subject, train: bool, scans: list, *, hidden: bool = False
) -> CheckResult:
    assert found.culprit is not None
    source, target = found.culprit
    where = found.move.module if found.move else ""
    pairs = found.pairs
    finding = (
        f"changing segment {source + 1} moves segment {target + 1} by {found.worst:.3g} "
        f"(its own logits move by {found.own[source]:.3g}); {len(pairs)} of {found.leaks.size - len(found.own)} "
        f"ordered pairs leak ({found.stage})"
    )
    if hidden:
        finding = (
            f"changing segment {source + 1} moves hidden states of segment {target + 1}; the logits' rounding hides it "
            f"({found.stage})"
        )
    if where:
        finding += f"; first seen in {describe(subject.model, where)}"
    return CheckResult(
        name="isolation",
        verdict="violated",
        mechanism=name_leak(context, subject, found, train=train),
        measured=found.worst,
        tolerance=found.tolerance,
        where=where,
        finding=finding,
        details={"stage": found.stage, "pairs": [[a + 1, b + 1] for a, b in pairs], **_numbers(scans)},
    )


def _hidden(context: Context, scans: list) -> CheckResult | None:
    """Hidden states moved while logits stood still: a leak hidden by rounding, if float64 cannot say otherwise."""
    moved = [item for item in scans if item[0].move is not None and item[0].exact]
    if not moved or context.precise is not None:
        return None
    found, subject, train = moved[0]
    return _violated(context, found, subject, train, scans, hidden=True)


def _dead(scans: list) -> CheckResult | None:
    for found, _, _ in scans:
        # Only evaluation in the widest dtype has to be alive; 0.0 in a stage means that nothing was computed.
        if (found.own == 0).any():
            numb = [i + 1 for i in range(len(found.own)) if found.own[i] == 0]
            return _undecided(f"segment {numb[0]}'s own logits do not react to its own tokens ({found.stage})", scans)
        if found.unstable > 0 and (found.own <= 10 * found.tolerance).any():
            return _undecided(
                f"two identical calls differ by {found.unstable:.3g} ({found.stage}), as much as other tokens make: "
                "is dropout on?",
                scans,
            )
    if not scans[0][0].inside:
        return _undecided("no token of a segment reacts to the ones before it: there is nothing to isolate", scans)
    return None


def _undecided(why: str, scans: list) -> CheckResult:
    return CheckResult(name="isolation", verdict="undecided", finding=why, details=_numbers(scans))


def _proven(context: Context, scans: list) -> CheckResult:
    count = len(context.samples)
    worst = max((found for found, _, _ in scans), key=lambda found: found.worst)
    notes = []
    discarded = [found.move for found, _, _ in scans if found.move is not None and found.exact]
    if discarded and worst.worst == 0:
        move = discarded[0]
        notes.append(f"{move.module} computes over boundaries, and the model discards it: no logit moves in float64")
    if not all(found.exact for found, _, _ in scans):
        notes.append("shapes depend on the tokens (experts); in that case movements within rounding are allowed")
    if context.precise is None:
        notes.append("no float64 copy could be made; leaks below the rounding of hidden states would not show")
    stages = "; ".join(found.stage for found, _, _ in scans)
    moved = "moved by a bit" if worst.worst == 0 else "moved beyond rounding"
    return CheckResult(
        name="isolation",
        verdict="proven",
        measured=worst.worst,
        tolerance=worst.tolerance,
        finding=f"{count} segments, all {count * (count - 1)} ordered pairs: nothing {moved} ({stages})",
        notes=tuple(notes),
        details=_numbers(scans),
    )


def _numbers(scans: list) -> dict:
    return {
        "stages": [
            {
                "stage": found.stage,
                "leaks": found.leaks.tolist(),
                "own": found.own.tolist(),
                "tolerance": found.tolerance,
                "same_shapes": found.exact,
            }
            for found, _, _ in scans
        ]
    }
