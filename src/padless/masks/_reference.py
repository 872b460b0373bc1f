"""Who sees whom, asked pair by pair. Slow on purpose: everything else in this room is checked against it."""

import numpy as np

from padless.rows import Batch


def reference_mask(batch: Batch) -> np.ndarray:
    """bool[T, T], True where the query (first axis) attends the key (second axis)."""
    rule, slots = batch.rule, batch.num_slots
    mask = np.zeros((slots, slots), dtype=bool)
    for segment in range(batch.num_segments):
        first = int(batch.cu_seqlens_padded[segment])
        length = int(batch.cu_seqlens[segment + 1] - batch.cu_seqlens[segment])
        for q in range(length):
            for k in range(length):
                if rule.kind == "causal":
                    seen = k <= q
                elif rule.kind == "bidirectional":
                    seen = True
                else:
                    rank_q, rank_k = int(batch.ranks[first + q]), int(batch.ranks[first + k])
                    seen = rank_k <= rank_q if rule.visibility is None else rule.visibility[rank_q][rank_k]
                if rule.window is not None:
                    left, right = rule.window
                    seen = seen and (left is None or k >= q - left) and (right is None or k <= q + right)
                if rule.chunk is not None:
                    seen = seen and q // rule.chunk == k // rule.chunk
                mask[first + q, first + k] = seen
    return mask
