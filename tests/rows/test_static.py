"""Static shapes: a batch says that it has them, and what kernels get from it keeps one size."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.errors import PadlessError
from padless.rows import collate


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.sampled_from([1, 4]))
def test_boundaries_over_every_slot_keep_one_size(lengths: list[int], align: int) -> None:
    batch = collate([[7] * n for n in lengths], static=(256, 6), align=align)
    cuts, ids = batch.covering_cu_seqlens()
    assert (cuts.shape, ids.shape) == ((15,), (14,)), "2 * 6 segments and gaps, 256 // 128 more pieces of padding"
    assert cuts[-1] == 256
    assert np.diff(cuts)[ids > 0].tolist() == lengths
    assert np.repeat(ids, np.diff(cuts)).tolist() == batch.segment_ids.tolist()


def test_a_batch_says_whether_its_shapes_are_static() -> None:
    assert collate([[1, 2]]).static_segments is None
    static = collate([[1, 2]], static=(8, 3))
    assert static.static_segments == 3
    assert static.torch().numpy().static_segments == 3


@pytest.mark.parametrize("segments", [None, 1, 2, 4])
def test_offsets_of_another_size_than_said_are_refused(segments: int | None) -> None:
    batch = collate([[1], [2]], static=(8, 3))
    with pytest.raises(PadlessError, match=f"static_segments={segments} need cu_seqlens"):
        dataclasses.replace(batch, static_segments=segments)
