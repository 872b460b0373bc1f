"""From a padded policy batch to the tokens that are real: where they lie, their positions, who sees whom.

A pi0-type model lays its tokens out by expert, not by sample: all prefixes, then all suffixes, `[P0 P1 .. | S0 S1 ..]`.
So the tokens of one sample do not lie together. `PolicyRows.batch` holds the same tokens sample by sample
(`[P0 S0 P1 S1 ..]`), which is what padless means by segments, and `order` says where each of them is for the experts.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from padless.errors import PadlessError
from padless.masks.calls import Call, varlen_calls
from padless.masks.geometry import offsets_of, ranges
from padless.rows import Batch, Rule, batch_from_segments
from padless.rows.tensors import host


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyRows:
    """The real tokens of a policy batch of B samples, without padding: P of prefixes and S of suffixes.

    Attributes:
        batch: All P + S tokens, one segment per sample, prefix before suffix; `block-causal`. Its positions run on from
            a sample's prefix to its suffix.
        order: int64[P + S]; slot t of `batch` is token `order[t]` of the experts' layout `[P0 P1 .. | S0 S1 ..]`.
        prefix_index: int64[P], where the prefix tokens lie in the padded prefixes `[B * Lp]`.
        suffix_index: int64[S], where the suffix tokens lie in the padded suffixes `[B * Ls]`.
        padded: B * (Lp + Ls), what the padded model computes.

    Example:
        >>> rows = PolicyRows.of([[1, 1, 0], [1, 1, 1]], suffix_ranks=[1, 1])
        >>> rows
        PolicyRows(2 samples, 5 + 4 tokens instead of 10)
        >>> rows.order
        array([0, 1, 5, 6, 2, 3, 4, 7, 8])
        >>> rows.positions
        array([0, 1, 0, 1, 2, 2, 3, 3, 4])
        >>> [(call.q_index, call.k_index) for call in rows.suffix_calls]
        [(None, array([0, 1, 5, 6, 2, 3, 4, 7, 8]))]
    """

    batch: Batch
    order: np.ndarray
    prefix_index: np.ndarray
    suffix_index: np.ndarray
    padded: int

    @classmethod
    def of(
        cls, prefix_mask: Any, *, suffix_ranks: Any, prefix_ranks: Any = None, suffix_mask: Any = None
    ) -> "PolicyRows":
        """Find the real tokens.

        Args:
            prefix_mask: bool[B, Lp], True where a prefix slot is real; openpi's `prefix_pad_masks`. Read to the host.
            suffix_ranks: int[Ls], or int[B, Ls], rank of each suffix token: the running sum of openpi's `att_masks`.
            prefix_ranks: int[Lp] or int[B, Lp], the same for prefixes; None: all 0, everything sees everything.
            suffix_mask: bool[B, Ls]; None: every suffix token is real.

        Raises:
            PadlessError: When masks and ranks disagree, or a sample has no prefix or no suffix.
        """
        prefixes = np.asarray(host(prefix_mask)).astype(bool)
        if prefixes.ndim != 2:
            raise PadlessError(f"prefix_mask must be [samples, slots], not of shape {prefixes.shape}")
        samples = len(prefixes)
        s_ranks = np.atleast_2d(np.asarray(host(suffix_ranks)).astype(np.int64))
        s_ranks = np.broadcast_to(s_ranks, (samples, s_ranks.shape[1]))
        suffixes = np.ones(s_ranks.shape, bool) if suffix_mask is None else np.asarray(host(suffix_mask)).astype(bool)
        if suffixes.shape != s_ranks.shape:
            raise PadlessError(f"suffix_mask has shape {suffixes.shape} and the ranks are {s_ranks.shape}")
        p_ranks = np.zeros(prefixes.shape[1], int) if prefix_ranks is None else np.asarray(host(prefix_ranks))
        p_ranks = np.broadcast_to(p_ranks, prefixes.shape)
        p_lengths, s_lengths = prefixes.sum(axis=1), suffixes.sum(axis=1)
        for name, lengths in {"prefix": p_lengths, "suffix": s_lengths}.items():
            if (lengths == 0).any():
                raise PadlessError(f"sample {int(np.argmax(lengths == 0))} has no real {name} token; drop and count it")
        order = _order(p_lengths, s_lengths)
        ranks = np.concatenate([p_ranks[prefixes], s_ranks[suffixes]])[order]
        batch = batch_from_segments(
            np.zeros(len(order), np.int64),
            np.zeros(len(order), bool),
            p_lengths + s_lengths,
            rule=Rule(kind="block-causal"),
            blocks=ranks.astype(np.int32),
            sample_ids=np.arange(samples),
        )
        return cls(
            batch=batch,
            order=order,
            prefix_index=np.flatnonzero(prefixes),
            suffix_index=np.flatnonzero(suffixes),
            padded=prefixes.size + suffixes.size,
        )

    @property
    def num_prefix(self) -> int:
        """P."""
        return len(self.prefix_index)

    @property
    def num_tokens(self) -> int:
        """P + S."""
        return len(self.order)

    @cached_property
    def positions(self) -> np.ndarray:
        """int64[P + S], in the experts' order: from 0 in every sample, suffixes running on from their prefixes."""
        positions = np.empty(self.num_tokens, dtype=np.int64)
        positions[self.order] = self.batch.position_ids
        return positions

    @cached_property
    def _calls(self) -> tuple[list[Call], list[Call]]:
        """The calls of `batch`, in the experts' order: those of prefix queries, those of suffix queries."""
        prefix, suffix = [], []
        for call in varlen_calls(self.batch):
            q, k = (self.order if index is None else self.order[index] for index in (call.q_index, call.k_index))
            for of_suffix, part in enumerate(_split(call, q, k, self.num_prefix)):
                if part is not None and of_suffix:
                    suffix.append(
                        _moved(part, shift=self.num_prefix, q=self.num_tokens - self.num_prefix, k=self.num_tokens)
                    )
                elif part is not None:
                    prefix.append(_moved(part, shift=0, q=self.num_prefix, k=self.num_prefix))
        return prefix, suffix

    @property
    def prefix_calls(self) -> list[Call]:
        """Plain varlen calls of the prefix tokens among themselves; one for pi0 and pi0.5."""
        return self._calls[0]

    @property
    def suffix_calls(self) -> list[Call]:
        """Plain varlen calls whose queries index suffix tokens `[S]` and whose keys index all tokens `[P + S]`.

        One for pi0.5, two for pi0. The gather of the keys is the only one that two experts need.
        """
        return self._calls[1]

    def __repr__(self) -> str:
        suffix = self.num_tokens - self.num_prefix
        return (
            f"PolicyRows({self.batch.num_segments} samples, {self.num_prefix} + {suffix} tokens "
            f"instead of {self.padded})"
        )


def _order(prefixes: np.ndarray, suffixes: np.ndarray) -> np.ndarray:
    """For tokens sample by sample: where the experts have them."""
    total = int(prefixes.sum())
    starts = np.stack([np.cumsum(prefixes) - prefixes, total + np.cumsum(suffixes) - suffixes], axis=1)
    return ranges(starts.reshape(-1), np.stack([prefixes, suffixes], axis=1).reshape(-1))


def _split(call: Call, q: np.ndarray, k: np.ndarray, prefix: int) -> tuple[Call | None, Call | None]:
    """A call in the experts' order as one of prefix queries and one of suffix queries; None where there are none.

    A causal call may run over both (single tokens at the end of a prefix, single tokens behind it). Its diagonal is
    aligned to the bottom right, so the first part only loses as many keys as it loses queries.
    """
    nq, nk = np.diff(call.cu_seqlens_q), np.diff(call.cu_seqlens_k)
    owner = np.repeat(np.arange(len(nq)), nq)
    parts = []
    for wanted, fewer in ((q < prefix, True), (q >= prefix, False)):
        queries = np.bincount(owner[wanted], minlength=len(nq))
        keys = np.where(queries > 0, nk - (nq - queries) * (fewer and call.causal), 0)
        taken = k[ranges(np.cumsum(nk) - nk, keys)]
        if fewer and (taken >= prefix).any():
            raise PadlessError(
                "prefix and suffix tokens share a rank, so prefixes see suffixes: two experts cannot run one after the "
                "other; a suffix begins with a block of its own"
            )
        there = queries > 0
        parts.append(_part(call, q[wanted], taken, queries[there], keys[there]) if there.any() else None)
    return parts[0], parts[1]


def _part(call: Call, q: np.ndarray, k: np.ndarray, nq: np.ndarray, nk: np.ndarray) -> Call:
    return replace(
        call,
        q_index=q,
        k_index=k,
        cu_seqlens_q=offsets_of(nq),
        cu_seqlens_k=offsets_of(nk),
        max_seqlen_q=int(nq.max()),
        max_seqlen_k=int(nk.max()),
    )


def _moved(call: Call, *, shift: int, q: int, k: int) -> Call:
    """Query indices counted from `shift`; None for indices that are all `q` or `k` there are, in order."""
    queries = call.q_index - shift
    return replace(
        call,
        q_index=None if np.array_equal(queries, np.arange(q)) else queries,
        k_index=None if np.array_equal(call.k_index, np.arange(k)) else call.k_index,
    )
