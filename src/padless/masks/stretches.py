"""Stretches of tokens that see the same way: what rules with an order come down to."""

from typing import NamedTuple

import numpy as np

from padless.masks.geometry import changes, pieces_of, ranges, tokens_of
from padless.rows import Batch


class Stretches(NamedTuple):
    """Queries `[first, last)` see keys `[begin, last)` all, or, where `causal`, up to themselves. Slots, ascending.

    Attributes:
        first: int64[N], first query.
        last: int64[N], behind the last query and the last key.
        begin: int64[N], first key: where the piece begins.
        causal: bool[N].
    """

    first: np.ndarray
    last: np.ndarray
    begin: np.ndarray
    causal: np.ndarray


def runs_of(batch: Batch) -> Stretches:
    """Runs of equal rank, each of which sees all of its piece up to its own end. For rules with an order of ranks.

    Example:
        >>> from padless import Rule, collate
        >>> batch = collate([{"input_ids": [7] * 5, "blocks": [0, 0, 1, 2, 2]}], rule=Rule(kind="block-causal"))
        >>> runs_of(batch).first, runs_of(batch).last
        (array([0, 2, 3]), array([2, 3, 5]))
    """
    pieces = pieces_of(batch)
    slots = ranges(pieces.starts, pieces.lengths)
    begin = np.repeat(pieces.starts, pieces.lengths)
    start = np.flatnonzero(changes(begin) | changes(tokens_of(batch).rank[slots]))
    end = np.append(start[1:], len(slots)) - 1
    return Stretches(slots[start], slots[end] + 1, begin[start], np.zeros(len(start), dtype=bool))


def stretches_of(batch: Batch) -> Stretches:
    """Runs, with neighbouring runs of one token each made one causal stretch.

    Example:
        >>> from padless import Rule, collate
        >>> stretches_of(collate([{"input_ids": [7] * 5, "prefix_length": 2}], rule=Rule(kind="prefix-lm")))
        Stretches(first=array([0, 2]), last=array([2, 5]), begin=array([0, 0]), causal=array([False,  True]))
    """
    if not batch.rule.has_ranks:
        pieces = pieces_of(batch)
        causal = np.full(len(pieces.starts), batch.rule.kind == "causal")
        return Stretches(pieces.starts, pieces.starts + pieces.lengths, pieces.starts, causal)
    runs = runs_of(batch)
    single = runs.last - runs.first == 1
    head = changes(runs.begin) | ~single | ~np.roll(single, 1)
    behind = np.append(np.flatnonzero(head)[1:], len(head)) - 1
    return Stretches(runs.first[head], runs.last[behind], runs.begin[head], single[head])
