"""Where segments lie, and how padding is cut: against loops that do it one slot at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from padless.errors import PadlessError
from padless.rows.layout import PAD_SEGMENT, cover, lay_out

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=8)


@st.composite
def rows_of_lengths(draw: st.DrawFn) -> list[list[int]]:
    return draw(st.lists(LENGTHS, min_size=1, max_size=4))


def naive_starts(rows: list[list[int]], align: int, capacity: int | None) -> tuple[list[int], int]:
    """First slot of each segment, and the slots used."""
    starts, slot = [], 0
    for r, row in enumerate(rows):
        if capacity is not None:
            slot = r * capacity
        for length in row:
            starts.append(slot)
            slot += length
            while slot % align:
                slot += 1
    return starts, slot if capacity is None else len(rows) * capacity


@given(rows=rows_of_lengths(), align=st.integers(1, 9), spare=st.integers(0, 3), multiple=st.integers(1, 50), tail=...)
def test_segments_lie_where_a_loop_puts_them(
    rows: list[list[int]], align: int, spare: int, multiple: int, tail: bool
) -> None:
    widest = max(sum(-(-n // align) * align for n in row) for row in rows)
    capacity = widest + spare * align if tail else None
    lengths = np.array([n for row in rows for n in row])
    offsets = np.cumsum([0, *map(len, rows)])
    layout = lay_out(lengths, offsets, capacity=capacity, align=align, multiple=multiple)
    starts, used = naive_starts(rows, align, capacity)
    assert layout.starts[:-1].tolist() == starts
    assert layout.starts[-1] == starts[-1] + -(-lengths[-1] // align) * align
    assert layout.slots % multiple == 0
    assert used <= layout.slots < used + multiple


@given(rows=rows_of_lengths(), align=st.integers(1, 4))
def test_a_row_that_does_not_fit_is_named(rows: list[list[int]], align: int) -> None:
    takes = [sum(-(-n // align) * align for n in row) for row in rows]
    worst = int(np.argmax(takes))
    capacity = takes[worst] - align
    if capacity < align:
        return
    first = next(r for r, n in enumerate(takes) if n > capacity)
    with pytest.raises(PadlessError, match=f"row {first} takes {takes[first]:,} slots"):
        lay_out(np.concatenate(rows), np.cumsum([0, *map(len, rows)]), capacity=capacity, align=align)


def test_static_slots_that_do_not_suffice_name_the_row() -> None:
    with pytest.raises(PadlessError, match="takes 9 slots and row 1 is the first"):
        lay_out(np.array([3, 3, 3]), np.array([0, 1, 2, 3]), slots=5)


def test_a_capacity_that_align_does_not_divide_is_refused() -> None:
    with pytest.raises(PadlessError, match="capacity=10 is no multiple of align=4"):
        lay_out(np.array([3]), np.array([0, 1]), capacity=10, align=4)


@st.composite
def segments_with_gaps(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    lengths = draw(LENGTHS)
    gaps = draw(
        st.lists(st.sampled_from([0, 0, 1, 5, 127, 128, 129, 300]), min_size=len(lengths), max_size=len(lengths))
    )
    starts = np.cumsum([0, *(n + g for n, g in zip(lengths, gaps, strict=True))])
    return starts[:-1], np.array(lengths), int(starts[-1])


@given(segments_with_gaps(), st.sampled_from([1, 2, 7, PAD_SEGMENT]))
def test_a_cover_is_every_slot_once_and_padding_stays_short(given_segments, longest: int) -> None:
    starts, lengths, slots = given_segments
    cuts, ids = cover(starts, lengths, slots, longest=longest)
    assert cuts[0] == 0
    assert cuts[-1] == slots
    widths = np.diff(cuts)
    assert (widths > 0).all()
    assert cuts[:-1][ids > 0].tolist() == starts.tolist()
    assert widths[ids > 0].tolist() == lengths.tolist()
    assert ids[ids > 0].tolist() == list(range(1, len(starts) + 1))
    assert (widths[ids == 0] <= longest).all()


@given(segments_with_gaps(), st.integers(0, 5))
def test_a_static_cover_has_one_size_whatever_is_in_it(given_segments, spare: int) -> None:
    starts, lengths, slots = given_segments
    most = len(starts) + spare
    cuts, ids = cover(starts, lengths, slots, most=most)
    plain, plain_ids = cover(starts, lengths, slots)
    assert len(cuts) == 2 * most + slots // PAD_SEGMENT + 1
    assert cuts[: len(plain)].tolist() == plain.tolist()
    assert ids[: len(plain_ids)].tolist() == plain_ids.tolist()
    assert (cuts[len(plain) :] == slots).all()
    assert (ids[len(plain_ids) :] == 0).all()
