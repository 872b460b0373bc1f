"""Tokens ahead, inside segments: against a loop, and against Megatron's roll under context parallelism."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.errors import PadlessError
from padless.rows import IGNORED, collate
from padless.training.context_parallel import ContextParallel, Shard, rolled

from .ranks import run_ranks


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=5), st.sampled_from([1, 4]), st.integers(0, 9), st.booleans())
def test_equals_a_loop_over_segments(sizes: list[int], align: int, by: int, tensors: bool) -> None:
    batch = collate([np.arange(1, n + 1) + 10 * i for i, n in enumerate(sizes)], align=align, pad_to_multiple=3)
    want = np.full(batch.num_slots, -7)
    for start, n in zip(batch.starts, batch.lengths, strict=True):
        for i in range(n - by):
            want[start + i] = batch.input_ids[start + i + by]
    batch = batch.torch() if tensors else batch
    assert rolled(batch, batch.input_ids, by=by, fill=-7).tolist() == want.tolist()


def test_one_place_ahead_is_what_the_loss_shifts_by() -> None:
    batch = collate([[1, 2, 3], [4, 5]], align=4)
    assert rolled(batch, batch.labels, fill=IGNORED).tolist() == batch.shifted_labels().tolist()


def test_the_padding_between_sequences_is_no_boundary_to_miss() -> None:
    """Megatron's roll of real offsets over padded slots gives [2, 3, 0, 4, 0, 5, 0, 0] here (its issue 4495)."""
    batch = collate([[1, 2, 3], [4, 5]], align=4)
    assert rolled(batch, batch.input_ids).tolist() == [2, 3, 0, 0, 5, 0, 0, 0]


def test_wrong_arrays_are_refused() -> None:
    batch = collate([[1, 2, 3]])
    with pytest.raises(PadlessError, match="does not run over the batch's 3 slots"):
        rolled(batch, np.zeros(4))
    with pytest.raises(PadlessError, match="by=-1"):
        rolled(batch, batch.labels, by=-1)
    with pytest.raises(PadlessError, match=r"use batch.torch"):
        rolled(batch, torch.zeros(3))


def batch_of_two() -> tuple:
    cp = ContextParallel(ranks=2)
    return cp, collate([np.arange(1, 9), np.arange(20, 32)], align=cp.align).torch()


def megatrons_roll(rank: int) -> torch.Tensor:
    import torch.distributed as dist
    from megatron.core.transformer.multi_token_prediction import roll_tensor

    cp, batch = batch_of_two()
    part = Shard(batch=batch, parallel=cp, rank=rank)
    params = SimpleNamespace(cu_seqlens_q=torch.from_numpy(cp.boundaries(batch)))
    found = part.input_ids
    for _ in range(2):
        found, _sum = roll_tensor(found, cp_group=dist.group.WORLD, packed_seq_params=params)
    return found


@pytest.mark.slow
@pytest.mark.interop
def test_rolling_before_dividing_is_what_megatrons_ranks_exchange_tokens_for(tmp_path: Path) -> None:
    pytest.importorskip("megatron.core.transformer.multi_token_prediction")
    cp, batch = batch_of_two()
    theirs = run_ranks(2, megatrons_roll, tmp_path)
    for rank, found in enumerate(theirs):
        ours = Shard(batch=batch, parallel=cp, rank=rank).take(rolled(batch, batch.input_ids, by=2))
        assert found.tolist() == ours.tolist()
