"""Rules that make no sense are refused; the others read as they are."""

from typing import Any

import pytest

from padless.errors import PadlessError
from padless.rows import Rule

REFUSED = {
    "an unknown kind": ({"kind": "diagonal"}, "'diagonal' is unknown"),
    "a bare window": ({"window": 128}, r"give \(W - 1, None\)"),
    "a negative window": ({"window": (-1, 0)}, "left=-1 is below 0"),
    "an empty chunk": ({"chunk": 0}, "chunk=0"),
    "a table for a causal rule": ({"visibility": ((True,),)}, "needs kind='block-causal'"),
    "a table that is not square": ({"kind": "block-causal", "visibility": ((True, True),)}, "square"),
    "a rank that is blind": (
        {"kind": "block-causal", "visibility": ((True, False), (True, False))},
        r"hides ranks \[1\] from themselves",
    ),
}


@pytest.mark.parametrize(("fields", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_rule_that_makes_no_sense_is_refused(fields, reason: str) -> None:
    with pytest.raises(PadlessError, match=reason):
        Rule(**fields)


def test_rules_are_values() -> None:
    assert Rule() == Rule(kind="causal", window=(None, None))
    table: Any = [[1, 0], [1, 1]]
    rule = Rule(kind="block-causal", visibility=table, window=(3, None), chunk=8)
    assert hash(rule) == hash(
        Rule(kind="block-causal", visibility=((True, False), (True, True)), window=(3, None), chunk=8)
    )
    assert repr(rule) == "Rule(block-causal, window=(3, None), chunk=8, visibility=10/11)"
