"""Histograms: merging, saving, and what is no length."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.errors import PadlessError
from padless.lengths import LengthHistogram, as_lengths, read_lengths

some = st.lists(st.integers(1, 1 << 31), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(some, some, some)
def test_merging_is_associative_and_exact(a: list[int], b: list[int], c: list[int]) -> None:
    x, y, z = map(LengthHistogram.of, (a, b, c))
    assert x.merge(y).merge(z) == x.merge(y.merge(z)) == z.merge(x).merge(y) == LengthHistogram.of(a + b + c)
    whole = LengthHistogram.merged([x, y, z])
    assert whole.samples == len(a + b + c)
    assert whole.tokens == sum(a + b + c)
    assert whole.sum_squares == sum(n * n for n in a + b + c)


@settings(max_examples=20, deadline=None)
@given(lengths=some)
def test_what_is_saved_is_loaded_and_equal_histograms_are_equal_files(lengths: list[int], tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("h")
    LengthHistogram.of(lengths).save(folder / "a.npz")
    LengthHistogram.of(sorted(lengths)).save(folder / "b.npz")
    assert (folder / "a.npz").read_bytes() == (folder / "b.npz").read_bytes()
    assert LengthHistogram.load(folder / "a.npz") == read_lengths(folder / "b.npz") == LengthHistogram.of(lengths)


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    LengthHistogram.of(range(1, 50)).save(path)
    data = bytearray(path.read_bytes())
    data[data.index(b"NUMPY") + 200] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(PadlessError, match="damaged"):
        LengthHistogram.load(path)


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    from padless.planning import plan

    plan([1, 2], 4).save(tmp_path / "p.npz")
    with pytest.raises(PadlessError, match=r"'padless\.plan'; expected 'padless\.lengths'"):
        LengthHistogram.load(tmp_path / "p.npz")
    with pytest.raises(PadlessError, match="is not a file"):
        LengthHistogram.load(tmp_path / "q.npz")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([], "nothing to plan"),
        ([[1, 2]], "one dimension"),
        ([[1], [1, 2]], "flat list"),
        ([1, 0], "#1: 0"),
        ([1, -1], "#1: -1"),
        ([1, float("nan")], "not whole numbers"),
        ([float("inf")], "not whole numbers"),
        ([1.5], "not whole numbers"),
        ([True], "must be whole numbers"),
        (["a"], "must be whole numbers"),
        ([None], "not whole numbers"),
        ([1 << 70], "63 bits"),
        (np.array([1 << 63], np.uint64), "63 bits"),
        (np.zeros(30, int), "and 25 more"),
    ],
)
def test_what_is_no_length_is_named(values: object, says: str) -> None:
    with pytest.raises(PadlessError, match=says):
        as_lengths(values)


def test_whole_floats_and_every_integer_dtype_are_lengths() -> None:
    assert as_lengths([3.0, 2.0]).tolist() == [3, 2]
    for dtype in (np.int8, np.uint16, np.uint64):
        assert as_lengths(np.array([3], dtype)).tolist() == [3]


def test_tables_that_are_no_histogram_are_refused() -> None:
    for lengths, counts in (([2, 1], [1, 1]), ([1, 1], [1, 1]), ([1], [0]), ([1], [1, 2]), ([(1 << 31) + 1], [1])):
        with pytest.raises(PadlessError):
            LengthHistogram(lengths=np.array(lengths), counts=np.array(counts))


def test_aligned_lengths_round_up() -> None:
    assert LengthHistogram.of([1, 8, 9, 16, 17]).padded(8) == LengthHistogram.of([1, 1, 2, 2, 3])
