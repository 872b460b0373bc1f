"""Arms hold the same real tokens; slots and squares are what a loop over rows counts."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.errors import PadlessError
from padless.measure.workloads import Work, at_padding, bucketed, dynamic, packed, padded, pick

LENGTHS = st.lists(st.integers(1, 64), min_size=1, max_size=40)


@settings(deadline=None, max_examples=60)
@given(lengths=LENGTHS, batch=st.integers(1, 6))
def test_every_arm_holds_the_same_tokens_and_counts_its_slots(lengths: list[int], batch: int) -> None:
    works = [
        padded(lengths, length=64, batch=batch),
        dynamic(lengths, batch=batch),
        bucketed(lengths, batch=batch),
        packed(lengths, capacity=64),
    ]
    assert {work.real_tokens for work in works} == {sum(lengths)}
    fixed, per_batch, by_length, rows = works
    for work in works[:3]:
        widths = [w for group, w in zip(work.groups, work.widths, strict=True) for _ in group]
        assert (work.slots, work.sum_squares) == (sum(widths), sum(w * w for w in widths))
        assert all(lengths[i] <= w for group, w in zip(work.groups, work.widths, strict=True) for i in group)
    assert fixed.slots >= per_batch.slots >= by_length.slots >= rows.slots == sum(lengths)
    assert rows.sum_squares == sum(n * n for n in lengths) <= rows.row_squares
    assert max(rows.widths) <= 64
    assert rows.padding == 0


@settings(deadline=None, max_examples=30)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), batch=st.integers(1, 4))
def test_no_batches_of_that_size_need_fewer_slots_than_bucketed(lengths: list[int], batch: int) -> None:
    sizes = [batch] * (len(lengths) // batch) + ([len(lengths) % batch] if len(lengths) % batch else [])
    least = min(
        sum(max(order[at : at + size]) * size for at, size in zip(np.cumsum([0, *cut[:-1]]), cut, strict=True))
        for order in set(itertools.permutations(lengths))
        for cut in set(itertools.permutations(sizes))
    )
    assert bucketed(lengths, batch=batch).slots == least


def test_work_that_loses_or_repeats_a_sample_is_refused() -> None:
    for groups in ([[0, 1]], [[0, 1], [1, 2]]):
        with pytest.raises(PadlessError, match="each goes in once"):
            Work(
                kind="padded",
                groups=tuple(map(np.array, groups)),
                widths=(4,) * len(groups),
                lengths=np.array([2, 3, 4]),
            )


def test_padding_never_cuts_a_sample() -> None:
    with pytest.raises(PadlessError, match="it would be cut"):
        padded([3, 9], length=8, batch=1)


@settings(deadline=None, max_examples=40)
@given(padding=st.floats(0.0, 0.95), length=st.sampled_from([64, 512, 4096]), count=st.integers(1, 50))
def test_lengths_have_the_padding_that_was_asked_for(padding: float, length: int, count: int) -> None:
    sizes = at_padding(padding, length=length, count=count)
    assert len(sizes) == count
    assert sizes.min() >= 1
    assert sizes.max() <= length
    assert abs((1 - sizes.mean() / length) - padding) <= 1 / length + 1e-9


def test_impossible_padding_is_refused() -> None:
    with pytest.raises(PadlessError, match="cannot have"):
        at_padding(0.999, length=64, count=4)


@settings(deadline=None, max_examples=40)
@given(lengths=st.lists(st.integers(1, 10_000), min_size=1, max_size=300), count=st.integers(1, 400))
def test_picked_samples_are_different_ones_from_all_over_the_data(lengths: list[int], count: int) -> None:
    chosen = pick(lengths, count)
    assert len(set(chosen.tolist())) == len(chosen) == min(count, len(lengths))
    ordered = np.sort(lengths)
    for quantile, length in enumerate(np.sort(np.array(lengths)[chosen])):  # one from every equal share of the data
        low, high = (int(len(lengths) * share / len(chosen)) for share in (quantile, quantile + 1))
        assert ordered[low] <= length <= ordered[min(high, len(ordered) - 1)]
