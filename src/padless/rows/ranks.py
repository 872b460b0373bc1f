"""Ranks of tokens, for the rules that cannot read them off the index."""

from collections.abc import Callable
from typing import Any

import numpy as np

from padless.errors import PadlessError
from padless.rows.layout import Layout
from padless.rows.rule import Rule


def ranks_of(
    rule: Rule,
    layout: Layout,
    *,
    prefix_lengths: np.ndarray | None,
    blocks: np.ndarray | None,
    begins: np.ndarray,
    spread: Callable[[np.ndarray, float, Any], np.ndarray],
) -> np.ndarray | None:
    """int32[T] ranks over slots, -1 on padding; None for rules that need none.

    Args:
        rule: The rule.
        layout: Where segments lie.
        prefix_lengths: int[S], length of each sample's prefix, in tokens of the sample.
        blocks: int[N], block number of every real token.
        begins: int[S], first token of each segment inside its sample: a later piece keeps what is left of the prefix.
        spread: Puts an array [N] into slots.

    Raises:
        PadlessError: When the rule lacks what it needs, or gets what it has no use for.
    """
    for name, given, kind in (("prefix_lengths", prefix_lengths, "prefix-lm"), ("blocks", blocks, "block-causal")):
        if given is None and rule.kind == kind:
            raise PadlessError(f"{rule} needs {name}; without them every token would be seen as causal")
        if given is not None and rule.kind != kind:
            raise PadlessError(f"{name} were given and {rule} has no use for them; say rule=Rule(kind={kind!r})")
    if rule.kind == "prefix-lm":
        ranks = _prefix_ranks(layout.lengths, np.asarray(prefix_lengths, dtype=np.int64), begins)
    elif rule.kind == "block-causal":
        ranks = np.asarray(blocks)
        if len(ranks) != int(layout.lengths.sum()):
            raise PadlessError(f"blocks hold {len(ranks):,} entries for {int(layout.lengths.sum()):,} tokens")
    else:
        return None
    return spread(ranks, -1, np.int32)


def _prefix_ranks(lengths: np.ndarray, prefixes: np.ndarray, begins: np.ndarray) -> np.ndarray:
    if len(prefixes) != len(lengths) or (prefixes < 0).any():
        raise PadlessError(f"prefix_lengths must be {len(lengths)} numbers from 0 up, one per segment")
    left = np.maximum(prefixes - begins, 0)
    index = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.maximum(index - np.repeat(left, lengths) + 1, 0)
