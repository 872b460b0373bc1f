"""Plans that were tampered with: every promise that is broken is named."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from padless.errors import ViolationError
from padless.planning import Plan, check_plan, plan

LENGTHS = np.array([5, 3, 8, 20, 4, 6, 2, 7])


def make(**settings: object) -> Plan:
    return plan(LENGTHS, 10, **({"oversize": "split", "max_segments": 4} | settings))


def changed(planned: Plan, **edits: Callable[[np.ndarray], None]) -> Plan:
    arrays = {name: getattr(planned, name).copy() for name in edits}
    for name, edit in edits.items():
        edit(arrays[name])
    return replace(planned, **arrays)


def setting(index: int, value: int) -> Callable[[np.ndarray], None]:
    def edit(array: np.ndarray) -> None:
        array[index] = value

    return edit


def split_segment(planned: Plan) -> int:
    return int(np.flatnonzero(planned.starts > 0)[0])


def whole_segment(planned: Plan) -> int:
    return int(np.flatnonzero(planned.sample_ids == 2)[0])


def test_what_was_not_touched_holds() -> None:
    for settings in ({}, {"oversize": "drop"}, {"oversize": "truncate"}, {"align": 2}, {"strategy": "concat"}):
        check_plan(make(**settings), LENGTHS)


FAULTS: dict[str, tuple[str, Callable[[Plan], Plan]]] = {
    "a sample twice": ("overlap or leave a hole", lambda p: changed(p, sample_ids=setting(whole_segment(p), 0))),
    "an id too large": ("outside 0..7", lambda p: changed(p, sample_ids=setting(0, 8))),
    "an id below zero": ("outside 0..7", lambda p: changed(p, sample_ids=setting(0, -1))),
    "a hole": ("overlap or leave a hole", lambda p: changed(p, starts=setting(split_segment(p), 11))),
    "a start below zero": ("start before their sample", lambda p: changed(p, starts=setting(0, -1))),
    "an empty segment": ("without a token", lambda p: changed(p, lengths=setting(whole_segment(p), 0))),
    "a token too few": ("not all placed once", lambda p: changed(p, lengths=setting(whole_segment(p), 7))),
    "a token too many": ("above the capacity", lambda p: changed(p, lengths=setting(whole_segment(p), 11))),
    "an empty row": ("rows without a segment", lambda p: changed(p, row_offsets=setting(1, 0))),
    "rows joined": ("rows above the capacity", lambda p: replace(p, row_offsets=np.delete(p.row_offsets, 1))),
    "a stricter limit": ("above 1 segments", lambda p: replace(p, spec=replace(p.spec, max_segments=1))),
    "another alignment": ("above the capacity", lambda p: replace(p, spec=replace(p.spec, align=9))),
    "another policy": ("split without leave", lambda p: replace(p, spec=replace(p.spec, oversize="error"))),
    "another seed": ("the fingerprint is", lambda p: replace(p, spec=replace(p.spec, seed=1))),
    "cooked books": (
        "accounting says split_samples",
        lambda p: replace(p, accounting=replace(p.accounting, split_samples=9)),
    ),
    "a false certificate": (
        "the certificate is for",
        lambda p: replace(p, certificate=replace(p.certificate, rows=99)),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_broken_is_named(fault: str) -> None:
    says, plant = FAULTS[fault]
    with pytest.raises(ViolationError, match=says):
        check_plan(plant(make()), LENGTHS)
