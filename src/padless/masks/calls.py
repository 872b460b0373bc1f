"""A rule as a short list of plain varlen calls, each one that flash-attn and its kin can run without a mask tensor.

Causal and bidirectional rows are one call. For a rule with ranks, a token sees a prefix of its segment that ends with
its own rank class. So the tokens of a class are one full call of their own against that prefix, and neighbouring
classes of one token each are one causal call, aligned to the bottom right. Prefix-LM needs two calls, pi0 three. Every
query is in exactly one call, so outputs are put in place and never merged.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from padless.errors import PadlessError
from padless.masks.geometry import changes, covering_pieces, offsets_of, pieces_of, ranges, window_of
from padless.masks.stretches import Stretches, runs_of, stretches_of
from padless.rows import Batch
from padless.rows.tensors import host, like


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """One varlen call: `out[q_index] = kernel(q[q_index], k[k_index], v[k_index], **call.flash_kwargs())`.

    Query i of a sequence with nq queries and nk keys sees key j iff `-left <= j - (i + nk - nq) <= right`: windows and
    the causal mask are aligned to the BOTTOM RIGHT, as in flash-attn since 2.1 (before, and in PyTorch's `is_causal`,
    they are aligned to the upper left, which is another mask wherever nq differs from nk).

    Attributes:
        q_index: int64[Nq], slots of the queries, or None for all T slots in order.
        k_index: int64[Nk], slots of keys and values, or None for all T slots in order.
        cu_seqlens_q: int32[P + 1], prefix sums over the gathered queries.
        cu_seqlens_k: int32[P + 1], prefix sums over the gathered keys.
        max_seqlen_q: Longest sequence of queries, or more.
        max_seqlen_k: Longest sequence of keys, or more.
        causal: Whether `right` is 0.
        window: `(left, right)`, inclusive; -1 is no limit, as in flash-attn.
    """

    q_index: Any
    k_index: Any
    cu_seqlens_q: Any
    cu_seqlens_k: Any
    max_seqlen_q: int
    max_seqlen_k: int
    causal: bool
    window: tuple[int, int]

    def flash_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of `flash_attn.flash_attn_varlen_func`, FA2 and FA3."""
        return {
            "cu_seqlens_q": self.cu_seqlens_q,
            "cu_seqlens_k": self.cu_seqlens_k,
            "max_seqlen_q": self.max_seqlen_q,
            "max_seqlen_k": self.max_seqlen_k,
            "causal": self.causal,
            "window_size": self.window,
        }


def varlen_calls(batch: Batch) -> list[Call]:
    """Compile the rule of a batch to plain varlen calls.

    Args:
        batch: Arrays or tensors; the calls hold the same, on the same device.

    Returns:
        Calls whose queries are disjoint and hold every real token. A call without `q_index` covers all T slots, padding
        as short sequences of its own. Calls with `q_index` leave padding out: make `out` of zeros. There are at most
        as many calls as distinct ranks, and of a causal or bidirectional rule exactly one. With `static` batches that
        one call has fixed shapes; index lengths follow the data.

    Raises:
        PadlessError: For a window on a visibility table.

    Source:
        Ranks: openpi `make_attn_mask` (Physical Intelligence). Calls: flash-attn `flash_attn_varlen_func`.

    Example:
        >>> from padless import Rule, collate
        >>> row = [{"input_ids": [1, 2, 3, 4], "prefix_length": 2}, {"input_ids": [5, 6, 7], "prefix_length": 2}]
        >>> for call in varlen_calls(collate(row, rule=Rule(kind="prefix-lm"))):
        ...     print(call.causal, call.q_index, call.k_index, call.cu_seqlens_q, call.cu_seqlens_k)
        False [0 1 4 5] [0 1 4 5] [0 2 4] [0 2 4]
        True [2 3 6] None [0 2 3] [0 4 7]
    """
    rule = batch.rule
    if not rule.has_ranks:
        calls = [_covering_call(batch)]
    elif rule.visibility is None:
        calls = _ordered_calls(batch)
    elif rule.window is None:
        calls = _visibility_calls(batch)
    else:
        raise PadlessError(
            f"{rule} cannot be said in varlen calls: keys of a visibility table are gathered from several places, and "
            "a kernel would count its window in gathered keys; use padless.masks.flex or padless.masks.dense"
        )
    return calls


def _covering_call(batch: Batch) -> Call:
    cuts, _ = covering_pieces(batch)
    causal = batch.rule.kind == "causal"
    longest = max(int(np.diff(cuts).max()), batch.max_seqlen)
    boundaries = like(cuts, batch.input_ids)
    return Call(
        q_index=None,
        k_index=None,
        cu_seqlens_q=boundaries,
        cu_seqlens_k=boundaries,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        causal=causal,
        window=_window(batch, causal),
    )


def _ordered_calls(batch: Batch) -> list[Call]:
    """Ranks that never fall inside a segment: full runs and causal stretches, or one call per rank if that is less."""
    stretches = stretches_of(batch)
    keys = _count_before(stretches) * 2 + stretches.causal
    runs = runs_of(batch)
    rank_of_run = host(batch.ranks)[runs.first]
    if len(np.unique(keys)) > len(np.unique(rank_of_run)):
        stretches, keys = runs, rank_of_run
    calls = []
    for key in np.unique(keys):
        first, last, begin, causal = (values[keys == key] for values in stretches)
        nq, nk = last - first, last - begin
        calls.append(_call(batch, ranges(first, nq), ranges(begin, nk), nq, nk, causal=bool(causal[0])))
    return calls


def _visibility_calls(batch: Batch) -> list[Call]:
    """One full call for each distinct row of the table; its queries and keys are gathered from wherever they lie."""
    pieces = pieces_of(batch)
    slots = ranges(pieces.starts, pieces.lengths)
    ranks = host(batch.ranks)[slots]
    owner = np.repeat(np.arange(len(pieces.starts)), pieces.lengths)
    rows, row_of_rank = np.unique(np.array(batch.rule.visibility), axis=0, return_inverse=True)
    row_of_query = row_of_rank.reshape(-1)[ranks]
    calls = []
    for row in np.unique(row_of_query):
        queries = row_of_query == row
        q_lengths = np.bincount(owner[queries], minlength=len(pieces.starts))
        keys = rows[row][ranks] & (q_lengths > 0)[owner]
        k_lengths = np.bincount(owner[keys], minlength=len(pieces.starts))
        there = q_lengths > 0
        calls.append(_call(batch, slots[queries], slots[keys], q_lengths[there], k_lengths[there], causal=False))
    return calls


def _call(batch: Batch, q: np.ndarray, k: np.ndarray, nq: np.ndarray, nk: np.ndarray, *, causal: bool) -> Call:
    return Call(
        q_index=_index(batch, q),
        k_index=_index(batch, k),
        cu_seqlens_q=like(offsets_of(nq), batch.input_ids),
        cu_seqlens_k=like(offsets_of(nk), batch.input_ids),
        max_seqlen_q=int(nq.max()),
        max_seqlen_k=int(nk.max()),
        causal=causal,
        window=_window(batch, causal),
    )


def _index(batch: Batch, slots: np.ndarray) -> Any:
    """None where the slots are all there are, in order: no gather is needed."""
    if len(slots) == batch.num_slots and bool((slots == np.arange(len(slots))).all()):
        return None
    return like(slots, batch.input_ids)


def _window(batch: Batch, causal: bool) -> tuple[int, int]:
    left, right = (-1 if limit is None else limit for limit in window_of(batch))
    return left, 0 if causal else right


def _count_before(stretches: Stretches) -> np.ndarray:
    """How many stretches of the same piece and the same kind come before each one."""
    out = np.empty(len(stretches.first), dtype=np.int64)
    for kind in (False, True):
        mine = np.flatnonzero(stretches.causal == kind)
        if len(mine):
            heads = np.flatnonzero(changes(stretches.begin[mine]))
            out[mine] = np.arange(len(mine)) - np.repeat(heads, np.diff(np.append(heads, len(mine))))
    return out
