"""The fast path: arrays that are given away, and positions by copies or by arithmetic."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.rows import batch_from_segments, collate
from padless.rows.assemble import RAMP_SLOTS


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 3 * RAMP_SLOTS), min_size=1, max_size=5), st.integers(0, 70), st.integers(1, 64))
def test_positions_of_long_and_short_pieces_count_alike(lengths: list[int], start: int, align: int) -> None:
    """Long pieces are copies of one ramp and short ones come from arithmetic; nobody can tell."""
    batch = collate([np.zeros(n, np.int64) for n in lengths], position_start=start, align=align)
    for positions, n in zip(batch.unpack(batch.position_ids), lengths, strict=True):
        assert (positions == np.arange(start, start + n)).all()


def test_tokens_are_taken_over_only_when_they_are_given_away() -> None:
    tokens, lengths = np.arange(5), np.array([3, 2])
    kept = batch_from_segments(tokens, None, lengths)
    given_away = batch_from_segments(tokens, None, lengths, copy=False)
    assert given_away.input_ids is tokens
    assert not np.shares_memory(tokens, given_away.labels)
    assert given_away.labels.tolist() == kept.labels.tolist()
    assert tokens.tolist() == [0, 1, 2, 3, 4], "masking the first labels wrote into the caller's tokens"


@pytest.mark.parametrize("options", [{"align": 2}, {"capacity": 9}, {"dtype": np.int32}, {"static": (6, 2)}])
def test_tokens_that_must_move_or_change_are_copied_all_the_same(options: dict) -> None:
    tokens = np.arange(5)
    batch = batch_from_segments(tokens, None, np.array([3, 2]), copy=False, **options)
    assert not np.shares_memory(tokens, batch.input_ids)
    assert [piece.tolist() for piece in batch.unpack(batch.input_ids)] == [[0, 1, 2], [3, 4]]
