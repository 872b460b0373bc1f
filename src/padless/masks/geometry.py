"""What every mask language starts from: each slot's segment, index and rank, and the pieces that attention stays in."""

from typing import Any, NamedTuple

import numpy as np

from padless.rows import Batch, Rule
from padless.rows.layout import cover
from padless.rows.tensors import host, like


class Tokens(NamedTuple):
    """Per-slot numbers, int32[T] each; arrays, or tensors.

    Attributes:
        segment: 1..S, 0 on padding.
        index: Place in the segment, from 0; on padding it means nothing.
        rank: As `Rule` has it: of the batch, or read off the index; on padding it means nothing.
    """

    segment: Any
    index: Any
    rank: Any


def tokens_of(batch: Batch) -> Tokens:
    """The numbers that decide who sees whom.

    Example:
        >>> from padless import collate
        >>> tokens_of(collate([[7, 7, 7], [8, 8]])).index
        array([0, 1, 2, 0, 1], dtype=int32)
    """
    segment = host(batch.segment_ids)
    starts = host(batch.starts).astype(np.int32)
    index = np.arange(batch.num_slots, dtype=np.int32) - starts[np.maximum(segment - 1, 0)]
    if batch.rule.has_ranks:
        return Tokens(segment, index, host(batch.ranks))
    return Tokens(segment, index, index if batch.rule.kind == "causal" else np.zeros_like(index))


def attends(rule: Rule, queries: Tokens, keys: Tokens, table: Any) -> Any:
    """The rule, elementwise on arrays or tensors that broadcast against each other; True = attend.

    It makes no tensors of its own and nothing that `torch.vmap` cannot follow, so that FlexAttention can trace it.

    Args:
        rule: The rule.
        queries: Their numbers.
        keys: Their numbers.
        table: `visibility_table(batch)`.
    """
    seen = (queries.segment == keys.segment) & (keys.segment > 0)
    if rule.visibility is not None:
        # Padding has rank -1, which no table has; it is out by its segment.
        seen = seen & table[queries.rank.clip(min=0), keys.rank.clip(min=0)]
    elif rule.kind != "bidirectional":
        seen = seen & (keys.rank <= queries.rank)
    left, right = rule.window or (None, None)
    if left is not None:
        seen = seen & (keys.index >= queries.index - left)
    if right is not None:
        seen = seen & (keys.index <= queries.index + right)
    if rule.chunk is not None:
        seen = seen & (queries.index // rule.chunk == keys.index // rule.chunk)
    return seen


def visibility_table(batch: Batch) -> Any:
    """bool[ranks, ranks] as the batch's arrays are, or None."""
    visibility = batch.rule.visibility
    return None if visibility is None else like(np.array(visibility), batch.input_ids)


class Pieces(NamedTuple):
    """Runs of slots that see only themselves: segments, or the chunks of segments.

    Attributes:
        starts: int64[P], first slot.
        lengths: int64[P], real tokens.
        segments: int64[P], whose piece it is, from 1.
    """

    starts: np.ndarray
    lengths: np.ndarray
    segments: np.ndarray


def pieces_of(batch: Batch) -> Pieces:
    """Segments, cut into chunks where the rule has them: a chunked mask is nothing but more boundaries.

    Example:
        >>> from padless import Rule, collate
        >>> pieces_of(collate([[7] * 5, [8] * 2], rule=Rule(chunk=2))).lengths
        array([2, 2, 1, 2])
    """
    starts, lengths = host(batch.starts).astype(np.int64), host(batch.lengths).astype(np.int64)
    ids = np.arange(1, len(lengths) + 1)
    chunk = batch.rule.chunk
    if chunk is None:
        return Pieces(starts, lengths, ids)
    counts = -(-lengths // chunk)
    offsets = ranges(np.zeros_like(counts), counts) * chunk
    left = np.repeat(lengths, counts) - offsets
    return Pieces(np.repeat(starts, counts) + offsets, np.minimum(left, chunk), np.repeat(ids, counts))


def covering_pieces(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """All T slots as pieces and, where there is padding, short pieces of it.

    Returns:
        `(cuts, owners)`: int32[P + 1] from 0 to T, and int64[P] the segment of each piece, 0 for padding. In static
        batches P depends on nothing that is in them.

    Example:
        >>> from padless import Rule, collate
        >>> covering_pieces(collate([[7] * 5, [8] * 2], capacity=8, rule=Rule(chunk=3)))
        (array([0, 3, 5, 7, 8], dtype=int32), array([1, 1, 2, 0]))
    """
    pieces = pieces_of(batch)
    most = batch.static_segments
    if most is not None and batch.rule.chunk is not None:
        most += batch.num_slots // batch.rule.chunk
    cuts, ids = cover(pieces.starts, pieces.lengths, batch.num_slots, most=most)
    return cuts.astype(np.int32), np.concatenate([[0], pieces.segments])[ids]


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """`[s0, s0 + 1, .., s0 + n0 - 1, s1, ..]`, int64.

    Example:
        >>> ranges(np.array([5, 0]), np.array([2, 3]))
        array([5, 6, 0, 1, 2])
    """
    before = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Prefix sums with a leading 0, int32 as kernels take them."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def changes(values: np.ndarray) -> np.ndarray:
    """True where a value differs from the one before it, and at the start."""
    return np.concatenate([[True], values[1:] != values[:-1]])


def window_of(batch: Batch) -> tuple[Any, Any]:
    """`(left, right)` of the rule, None for no limit."""
    return batch.rule.window or (None, None)
