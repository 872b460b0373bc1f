"""Who owns which slot: against the plain definitions, Transformer Engine's values and Megatron's rotary embedding."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.errors import PadlessError
from padless.rows import collate
from padless.training.context_parallel import ContextParallel, Shard, contiguous, documents, zigzag


def slots_of(owners: np.ndarray, rank: int) -> list[int]:
    return np.flatnonzero(owners == rank).tolist()


def naive_zigzag(cu: list[int], ranks: int, rank: int) -> list[int]:
    out = []
    for start, end in pairwise(cu):
        width = (end - start) // (2 * ranks)
        for chunk in (rank, 2 * ranks - 1 - rank):
            out += range(start + chunk * width, start + (chunk + 1) * width)
    return out


def index_formula(cu: list[int], ranks: int, rank: int) -> list[int]:
    """Transformer Engine's kernel, slot by slot (common/fused_attn/context_parallel.cu)."""
    s = [c // ranks for c in cu]
    out = []
    for t in range(s[-1]):
        i = next(i for i in range(len(cu) - 1) if s[i] <= t < s[i + 1])
        place, length = t - s[i], s[i + 1] - s[i]
        offset = rank if place < length / 2 else 2 * (ranks - 1) - rank
        out.append(place + s[i] * ranks + (length // 2) * offset)
    return out


rows = st.tuples(st.integers(1, 5), st.lists(st.integers(1, 6), min_size=1, max_size=6))


@settings(max_examples=60, deadline=None)
@given(rows)
def test_zigzag_equals_both_definitions(row: tuple[int, list[int]]) -> None:
    ranks, chunks = row
    cu = np.cumsum([0, *(2 * ranks * c for c in chunks)])
    owners = zigzag(cu, ranks)
    for rank in range(ranks):
        mine = slots_of(owners, rank)
        assert mine == naive_zigzag(cu.tolist(), ranks, rank) == index_formula(cu.tolist(), ranks, rank)


def test_zigzag_gives_the_values_of_transformer_engines_own_test() -> None:
    owners = zigzag(np.array([0, 8, 16]), 2)
    assert slots_of(owners, 0) == [0, 1, 6, 7, 8, 9, 14, 15]
    assert slots_of(owners, 1) == [2, 3, 4, 5, 10, 11, 12, 13]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_documents_gives_equal_shares_and_nearly_equal_work(ranks: int, sizes: list[int]) -> None:
    sizes[-1] += -sum(sizes) % ranks
    cu = np.cumsum([0, *sizes])
    owners = documents(cu, ranks)
    assert np.bincount(owners, minlength=ranks).tolist() == [cu[-1] // ranks] * ranks
    place = np.arange(cu[-1]) - np.repeat(cu[:-1], sizes)
    work = np.bincount(owners, weights=place + 1.0, minlength=ranks)
    # Chunks are exactly even; what differs are the fewer than 2 * ranks tokens behind the chunks of each segment.
    rests = [sum(range(n - n % (2 * ranks) + 1, n + 1)) for n in sizes]
    assert work.max() - work.min() <= sum(rests)


@settings(max_examples=30, deadline=None)
@given(rows)
def test_documents_is_zigzag_where_segments_are_aligned(row: tuple[int, list[int]]) -> None:
    ranks, chunks = row
    cu = np.cumsum([0, *(2 * ranks * c for c in chunks)])
    assert documents(cu, ranks).tolist() == zigzag(cu, ranks).tolist()


def test_zigzag_halves_the_slowest_ranks_work() -> None:
    cu, ranks = np.array([0, 4096]), 8
    work = np.arange(4096) + 1.0
    even = np.bincount(zigzag(cu, ranks), weights=work)
    uneven = np.bincount(contiguous(cu, ranks), weights=work)
    assert even.max() == even.min()
    assert uneven.max() / uneven.mean() > 1.87


batches = st.tuples(
    st.lists(st.lists(st.integers(1, 21), min_size=1, max_size=4), min_size=1, max_size=3),
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from(["zigzag", "contiguous", "documents"]),
    st.sampled_from([1, 2, 3]),
)


@settings(max_examples=80, deadline=None)
@given(batches)
def test_gather_undoes_the_division_and_parts_say_where_they_come_from(case: tuple) -> None:
    sizes, ranks, scheme, tensor_parallel = case
    cp = ContextParallel(ranks=ranks, scheme=scheme, sequence_parallel=tensor_parallel)
    samples = [[np.arange(1, n + 1) + 100 * i for i, n in enumerate(row)] for row in sizes]
    batch = collate(samples, align=cp.align, pad_to_multiple=cp.pad_to_multiple)
    parts = [Shard(batch=batch, parallel=cp, rank=rank) for rank in range(ranks)]
    for name in ("input_ids", "segment_ids", "position_ids"):
        assert np.array_equal(cp.gather([getattr(part, name) for part in parts], batch), getattr(batch, name))
    x = np.random.default_rng(0).normal(size=(batch.num_slots, 2, 3))
    assert np.array_equal(cp.gather([part.take(x) for part in parts], batch), x)
    tensors = [torch.from_numpy(part.take(x)) for part in parts]
    assert torch.equal(cp.gather(tensors, batch), torch.from_numpy(x))
    assert np.array_equal(cp.gather([p.next_labels() for p in parts], batch), batch.shifted_labels())
    assert sum(part.num_targets for part in parts) == batch.num_targets
    for part in parts:
        assert len(part.slots) == batch.num_slots // ranks
        assert (batch.num_slots // ranks) % tensor_parallel == 0
        pieces = cp.boundaries(batch)
        per_piece = [int(((part.slots >= a) & (part.slots < b)).sum()) for a, b in pairwise(pieces)]
        assert np.diff(part.cu_seqlens).tolist() == per_piece
        if scheme == "zigzag":
            assert part.cu_seqlens.tolist() == (pieces // ranks).tolist()


def test_tensors_stay_tensors_and_several_axes_of_positions_are_cut_along_the_last() -> None:
    cp = ContextParallel(ranks=2)
    positions = np.stack([np.arange(8), np.arange(8) * 2])
    sample = {"input_ids": np.arange(8), "position_ids": positions}
    batch = collate([sample], align=cp.align).torch()
    part = Shard(batch=batch, parallel=cp, rank=1)
    assert part.position_ids.tolist() == [[2, 3, 4, 5], [4, 6, 8, 10]]
    assert isinstance(part.input_ids, torch.Tensor)
    assert isinstance(part.cu_seqlens, torch.Tensor)
    assert part.cu_seqlens.dtype == torch.int32


@pytest.mark.parametrize("scheme", ["zigzag", "documents"])
def test_static_batches_and_rows_with_tails_divide_too(scheme: Any) -> None:
    cp = ContextParallel(ranks=2, scheme=scheme)
    rows = [[np.arange(1, 12), np.arange(1, 4)], [np.arange(1, 7)]]
    for settings_of in ({"static": (64, 9)}, {"capacity": 20}):
        batch = collate(rows, align=cp.align, **settings_of)  # type: ignore[arg-type]
        parts = [Shard(batch=batch, parallel=cp, rank=rank) for rank in range(2)]
        assert np.array_equal(cp.gather([part.input_ids for part in parts], batch), batch.input_ids)
        assert [int((part.segment_ids > 0).sum()) for part in parts] == ([10, 10] if scheme == "documents" else [8, 12])


def test_weights_follow_their_labels() -> None:
    cp = ContextParallel(ranks=2)
    batch = collate([[1, 2, 3, 4], [5, 6]], align=cp.align, loss_weights="per-sample")
    weights = cp.gather([Shard(batch=batch, parallel=cp, rank=r).next_weights() for r in (0, 1)], batch)
    assert weights.tolist() == batch.shifted_loss_weights().tolist()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: ContextParallel(ranks=0), "ranks=0"),
        (lambda: ContextParallel(ranks=2, scheme="ring"), "there are zigzag, contiguous, documents"),  # type: ignore[arg-type]
        (lambda: zigzag(np.array([0, 6, 12]), 2), "boundary 1 of the row is slot 6.*align=4"),
        (lambda: documents(np.array([0, 7]), 2), "pad_to_multiple=2, which gives 8 slots"),
        (lambda: contiguous(np.array([0, 7]), 4), "pad_to_multiple=4, which gives 8 slots"),
        (lambda: ContextParallel(ranks=4).check_capacity(4100), "multiple of 8 .2 . cp = 8.*use 4,096 or 4,104"),
        (lambda: ContextParallel(ranks=2, sequence_parallel=8).check_capacity(10), "multiple of 16.*use 16$"),
        (lambda: ContextParallel(ranks=2).slots(collate([[1, 2, 3]])), "aligns its segments to 1.*align=4"),
        (lambda: ContextParallel(ranks=3).slots(collate([[1, 2, 3]], align=4)), "collate with align=12"),
        (
            lambda: ContextParallel(ranks=2, sequence_parallel=3).slots(collate([[1] * 4], align=4)),
            "4 slots is no multiple of 12.*use 12",
        ),
        (lambda: Shard(batch=collate([[1] * 4], align=4), parallel=ContextParallel(ranks=2), rank=2), "rank=2 of 2"),
        (lambda: ContextParallel(ranks=2).gather([np.zeros(3)], collate([[1] * 4], align=4)), "2 parts of 2 slots"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_what_can(made: Any, message: str) -> None:
    with pytest.raises(PadlessError, match=message):
        made()


class Group:
    """What Megatron asks of a process group before any communication."""

    def __init__(self, ranks: int, rank: int) -> None:
        self._size, self._rank = ranks, rank

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank


@pytest.mark.interop
@pytest.mark.parametrize("ranks", [2, 4])
def test_megatrons_rotary_embedding_agrees_on_every_position(ranks: int) -> None:
    rope_utils = pytest.importorskip("megatron.core.models.common.embeddings.rope_utils")
    cp = ContextParallel(ranks=ranks)
    batch = collate([[5] * 11, [6] * 3, [7] * 16], align=cp.align).torch()
    pieces = torch.from_numpy(cp.boundaries(batch)).int()
    longest = int(pieces.diff().max())
    x = torch.randn(batch.num_slots, 2, 8, dtype=torch.float64)
    frequencies = torch.randn(longest, 1, 1, 8, dtype=torch.float64)

    def rotated(x: torch.Tensor, group: Group) -> torch.Tensor:
        return rope_utils._apply_rotary_pos_emb_thd(x, pieces, frequencies, cp_group=group)

    whole = rotated(x, Group(1, 0))
    for rank in range(ranks):
        part = Shard(batch=batch, parallel=cp, rank=rank)
        mine = rotated(part.take(x), Group(ranks, rank))
        torch.testing.assert_close(mine, part.take(whole), rtol=0, atol=0)
        by_position = rope_utils._apply_rotary_pos_emb_bshd(
            part.take(x).unsqueeze(1), frequencies[part.position_ids.long()]
        ).squeeze(1)
        real = part.segment_ids > 0
        torch.testing.assert_close(mine[real], by_position[real], rtol=0, atol=0)
