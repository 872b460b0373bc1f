"""A batch holds exactly what its samples say: compared, slot by slot, with a loop over tokens."""

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.errors import PadlessError
from padless.rows import IGNORED, Batch, Rule, batch_from_segments, collate
from padless.rows.layout import PAD_SEGMENT
from padless.rows.summary import padding_of

PAD = 0  # also a real token below, so that anything that told padding by its id would be caught


@st.composite
def segments(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """Rows of samples: ids that include the pad id, targets or none, pieces of split samples."""
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        row = []
        for _ in range(draw(st.integers(1, 4))):
            n = draw(st.integers(1, 9))
            sample: dict[str, Any] = {
                "input_ids": np.array(draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)), np.uint16),
                "start": draw(st.sampled_from([0, 0, 4])),
                "sample_id": draw(st.integers(0, 3)),
                "targets": np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n))),
            }
            row.append(sample)
        rows.append(row)
    return rows


def by_hand(rows, *, align: int, tail: int, capacity: int | None, start: int, positions: str) -> dict[str, list]:
    """What the batch must hold, by a loop over tokens."""
    out: dict[str, list] = {"ids": [], "labels": [], "positions": [], "segments": [], "begins": []}
    number = 0

    def pad(count: int) -> None:
        for _ in range(count):
            run = next((i for i, segment in enumerate(reversed(out["segments"])) if segment), 0)  # pads just before
            out["ids"].append(PAD)
            out["labels"].append(IGNORED)
            out["positions"].append(start + run % PAD_SEGMENT)
            out["segments"].append(0)

    for row in rows:
        row_begin = len(out["ids"])
        for sample in row:
            number += 1
            out["begins"].append(len(out["ids"]))
            for i, token in enumerate(sample["input_ids"].tolist()):
                out["ids"].append(token)
                out["labels"].append(token if i > 0 and sample["targets"][i] else IGNORED)
                out["positions"].append(start + i + (sample["start"] if positions == "continue" else 0))
                out["segments"].append(number)
            pad(-len(sample["input_ids"]) % align)
        if capacity is not None:
            pad(row_begin + capacity - len(out["ids"]))
    pad(-len(out["ids"]) % tail)
    return out


@settings(max_examples=150, deadline=None)
@given(
    rows=segments(),
    align=st.sampled_from([1, 2, 4]),
    padding=st.sampled_from(["none", "multiple", "capacity"]),
    start=st.sampled_from([0, 2]),
    positions=st.sampled_from(["restart", "continue"]),
    dtype=st.sampled_from([np.int32, np.int64]),
)
def test_collate_equals_a_loop_over_tokens(rows, align, padding, start, positions, dtype) -> None:
    capacity = 160 if padding == "capacity" else None  # beyond PAD_SEGMENT, so that tails are cut up
    multiple = 8 if padding == "multiple" else 1
    batch = collate(
        rows,
        capacity=capacity,
        align=align,
        pad_to_multiple=multiple,
        position_start=start,
        positions=positions,
        pad_id=PAD,
        dtype=dtype,
    )
    wanted = by_hand(rows, align=align, tail=multiple, capacity=capacity, start=start, positions=positions)
    assert batch.input_ids.tolist() == wanted["ids"]
    assert batch.labels.tolist() == wanted["labels"]
    assert batch.position_ids.tolist() == wanted["positions"]
    assert batch.segment_ids.tolist() == wanted["segments"]
    assert batch.starts.tolist() == wanted["begins"]
    assert {a.dtype for a in (batch.input_ids, batch.labels, batch.position_ids)} == {np.dtype(dtype)}
    assert batch.cu_seqlens.dtype == batch.cu_seqlens_padded.dtype == batch.segment_ids.dtype == np.int32

    flat = [sample for row in rows for sample in row]
    lengths = [len(sample["input_ids"]) for sample in flat]
    assert batch.lengths.tolist() == lengths
    assert batch.sample_ids.tolist() == [sample["sample_id"] for sample in flat]
    assert batch.num_targets == sum(label != IGNORED for label in wanted["labels"])
    assert batch.targets_lost == sum(bool(sample["targets"][0]) and sample["start"] > 0 for sample in flat)
    assert padding_of(batch) == (
        sum(-n % align for n in lengths),
        len(wanted["ids"]) - sum(n + -n % align for n in lengths),
    )
    assert batch.contiguous == (wanted["segments"][: sum(lengths)].count(0) == 0)


@settings(max_examples=60, deadline=None)
@given(rows=segments(), align=st.sampled_from([1, 4]))
def test_unpack_undoes_packing_for_any_tensor_per_token(rows, align: int) -> None:
    batch = collate(rows, align=align, pad_to_multiple=3 * align)
    flat = [sample for row in rows for sample in row]
    for piece, sample in zip(batch.unpack(batch.input_ids), flat, strict=True):
        assert piece.tolist() == sample["input_ids"].tolist()
    logits = np.random.default_rng(0).normal(size=(1, batch.num_slots, 5))
    pieces = batch.unpack(logits)
    assert np.concatenate(pieces).tolist() == logits[0][batch.segment_ids > 0].tolist()
    with pytest.raises(PadlessError, match="does not run over"):
        batch.unpack(np.zeros(batch.num_slots + 1))


@settings(max_examples=100, deadline=None)
@given(rows=segments(), align=st.sampled_from([1, 3]))
def test_shifted_labels_never_cross_a_boundary(rows, align: int) -> None:
    batch = collate(rows, align=align)
    shifted, ids = batch.shifted_labels(), batch.segment_ids
    for i in range(batch.num_slots):
        inside = i + 1 < batch.num_slots and ids[i] != 0 and ids[i] == ids[i + 1]
        assert shifted[i] == (batch.labels[i + 1] if inside else IGNORED)
    assert int((shifted != IGNORED).sum()) == batch.num_targets  # the shift loses no target


@settings(max_examples=60, deadline=None)
@given(rows=segments(), align=st.sampled_from([1, 4]), tail=st.integers(1, 400))
def test_the_cover_leaves_segments_whole_and_cuts_padding_short(rows, align: int, tail: int) -> None:
    batch = collate(rows, align=align, pad_to_multiple=tail)
    cuts, ids = batch.covering_cu_seqlens()
    assert cuts[0] == 0
    assert cuts[-1] == batch.num_slots
    widths = np.diff(cuts)
    assert (widths > 0).all()
    assert widths[ids > 0].tolist() == batch.lengths.tolist()
    assert (widths[ids == 0] <= PAD_SEGMENT).all()
    assert np.repeat(ids, widths).tolist() == batch.segment_ids.tolist()
    # Positions restart exactly where the cover cuts: whoever reads boundaries off them finds the same ones.
    assert np.flatnonzero(batch.position_ids == 0).tolist() == cuts[:-1].tolist()


def test_weights_per_sample_give_every_sample_the_same_total() -> None:
    rows = [
        [{"input_ids": range(5), "sample_id": 7}, {"input_ids": range(3), "labels": [-100, -100, 2], "sample_id": 8}],
        [{"input_ids": range(4), "sample_id": 7, "start": 5}, {"input_ids": range(2), "labels": [-100] * 2}],
    ]
    batch = collate(rows, align=4, loss_weights="per-sample")
    totals = [piece.sum() for piece in batch.unpack(batch.loss_weights)]
    np.testing.assert_allclose(totals, [4 / 7, 1, 3 / 7, 0], rtol=1e-6)  # two pieces of sample 7 share its weight
    assert (batch.loss_weights[batch.labels == IGNORED] == 0).all()
    shifted = batch.shifted_loss_weights()
    assert (shifted[batch.shifted_labels() == IGNORED] == 0).all()
    np.testing.assert_allclose(shifted.sum(), batch.loss_weights.sum(), rtol=1e-6)


def test_own_weights_count_only_where_there_is_a_target() -> None:
    batch = collate([{"input_ids": [1, 2, 3], "loss_weights": [9.0, 0.5, 2.0]}], pad_to_multiple=4)
    assert batch.loss_weights.tolist() == [0, 0.5, 2, 0]


def test_a_static_batch_has_the_same_shapes_whatever_is_in_it() -> None:
    one = collate([[[1, 2, 3]]], static=(16, 5))
    many = collate([[[1, 2], [3, 4, 5]], [[6], [7, 8]]], static=(16, 5))
    for name in ("input_ids", "labels", "position_ids", "cu_seqlens", "cu_seqlens_padded", "segment_ids"):
        assert getattr(one, name).shape == getattr(many, name).shape
    assert one.max_seqlen == many.max_seqlen == 16
    assert one.cu_seqlens.tolist() == [0, 3, 3, 3, 3, 3]
    assert one.num_segments == 1
    assert many.num_segments == 4
    assert many.lengths.tolist() == [2, 3, 1, 2]
    with pytest.raises(PadlessError, match=r"4 segments and row 1 is the first that does not fit"):
        collate([[[1, 2], [3, 4, 5]], [[6], [7, 8]]], static=(16, 3))
    with pytest.raises(PadlessError, match=r"takes 8 slots and row 1 is the first"):
        collate([[[1, 2], [3, 4, 5]], [[6], [7, 8]]], static=(6, 5))


def test_axes_of_positions_are_kept_and_the_text_axis_is_checked() -> None:
    grid = np.array([[0, 1, 2], [0, 0, 1], [0, 1, 1]])
    batch = collate([{"input_ids": [5, 6, 7], "position_ids": grid}, {"input_ids": [8], "position_ids": grid[:, :1]}])
    assert batch.position_ids.tolist() == [[0, 1, 2, 0], [0, 0, 1, 0], [0, 1, 1, 0]]
    with pytest.raises(PadlessError, match="axis 0 of position_ids is not the text position"):
        collate([{"input_ids": [5, 6, 7], "position_ids": grid[1:]}])


def test_prefix_ranks_count_up_behind_what_is_left_of_the_prefix() -> None:
    samples = [
        {"input_ids": range(4), "prefix_length": 2},
        {"input_ids": range(3), "prefix_length": 9},
        {"input_ids": range(3), "prefix_length": 0},
        {"input_ids": range(3), "prefix_length": 5, "start": 4},
    ]
    batch = collate(samples, align=4, rule=Rule(kind="prefix-lm"))
    assert [ranks.tolist() for ranks in batch.unpack(batch.ranks)] == [[0, 0, 1, 2], [0, 0, 0], [1, 2, 3], [0, 1, 2]]
    assert (batch.ranks[batch.segment_ids == 0] == -1).all()


def example() -> Batch:
    samples = [{"input_ids": [1, 2, 3], "blocks": [0, 0, 1]}, {"input_ids": [4, 5], "blocks": [0, 1]}]
    return collate([samples, samples], capacity=8, align=2, rule=Rule(kind="block-causal"))


def changed(name: str, index: int, value: int) -> dict[str, Any]:
    array = getattr(example(), name).copy()
    array[index] = value
    return {name: array}


IMPOSSIBLE = {
    "a first token that is a target": (changed("labels", 4, 4), "first token of segment 1 is a target"),
    "padding that is a target": (changed("labels", 3, 4), "padding slot is a target"),
    "a segment without tokens": (changed("cu_seqlens", 1, 0), "at least one token"),
    "a segment longer than its room": (changed("cu_seqlens_padded", 1, 2), "has room for"),
    "offsets that end behind the slots": (changed("cu_seqlens_padded", 4, 99), "there are 16 slots"),
    "a segment off the alignment": ({"align": 8}, "multiple of align=8"),
    "offsets that do not start at 0": (changed("cu_seqlens", 0, 1), "start at 0"),
    "offsets in int64": ({"cu_seqlens": example().cu_seqlens.astype(np.int64)}, "must be int32"),
    "labels of another length": ({"labels": np.full(3, -100)}, "labels has shape"),
    "positions of another length": ({"position_ids": np.zeros(3)}, "position_ids has shape"),
    "more samples than offsets": ({"sample_ids": np.zeros(9, np.int64)}, "9 segments"),
    "an empty row": (changed("row_offsets", 1, 0), "no row empty"),
    "rows that do not hold all segments": (changed("row_offsets", 2, 3), "row_offsets must grow"),
    "a longest segment that is longer": ({"max_seqlen": 2}, "less than the longest segment"),
    "ranks that fall": (changed("ranks", 0, 5), "ranks fall from slot 0"),
    "ranks on padding": (changed("ranks", 3, 0), "ranks on padding"),
    "a negative rank": (changed("ranks", 0, -2), "must not be negative"),
    "ranks missing": ({"ranks": None}, "needs ranks"),
    "ranks too many": ({"rule": Rule()}, "takes its ranks from the index"),
    "a rank outside the table": (
        {"rule": Rule(kind="block-causal", visibility=((True,),))},
        "outside the 1-rank visibility table",
    ),
}


@pytest.mark.parametrize(("change", "reason"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_an_impossible_batch_raises(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(PadlessError, match=reason):
        dataclasses.replace(example(), **change)


def test_static_offsets_must_repeat_their_end() -> None:
    batch = collate([[1, 2], [3]], static=(8, 4))
    with pytest.raises(PadlessError, match="must repeat its end"):
        dataclasses.replace(batch, cu_seqlens=np.array([0, 2, 3, 3, 4], np.int32))


def test_removing_any_boundary_is_seen() -> None:
    """Each boundary, taken out of both offset arrays and everything that follows, changes what the batch says."""
    rows = [[[1, 2], [3, 4], [5]], [[6, 7], [8]]]
    whole = collate(rows)
    for i in range(1, whole.num_segments):
        merged = dataclasses.replace(
            whole,
            cu_seqlens=np.delete(whole.cu_seqlens, i),
            cu_seqlens_padded=np.delete(whole.cu_seqlens_padded, i),
            sample_ids=np.delete(whole.sample_ids, i),
            row_offsets=np.array([0, whole.num_segments - 1], np.int32),
            max_seqlen=-1,
        )
        assert (merged.segment_ids != whole.segment_ids).any()
        assert len(merged.unpack(merged.input_ids)) == whole.num_segments - 1


def test_a_rectangle_is_a_view_and_only_where_rows_have_one_width() -> None:
    batch = collate([[[1, 2, 3]], [[4], [5]]], capacity=4)
    rectangle = batch.rectangle(batch.input_ids)
    assert rectangle.tolist() == [[1, 2, 3, 0], [4, 5, 0, 0]]
    assert np.shares_memory(rectangle, batch.input_ids)
    assert batch.rectangle(np.zeros((8, 5))).shape == (2, 4, 5)
    ragged = collate([[[1, 2, 3]], [[4]]])
    with pytest.raises(PadlessError, match="capacity"):
        ragged.rectangle(ragged.input_ids)


def test_the_fast_path_shares_no_memory_with_its_arguments() -> None:
    tokens = np.arange(5)
    batch = batch_from_segments(tokens, None, np.array([3, 2]))
    for array in (batch.input_ids, batch.labels):
        assert not np.shares_memory(array, tokens)
        assert array.flags.writeable


def test_words() -> None:
    batch = collate([{"input_ids": range(3), "start": 3}, range(2)], align=4)
    assert repr(batch) == "Batch(1 row, 2 segments, 5 tokens in 8 slots, 3 targets, causal)"
    assert batch.summary().splitlines() == [
        "rows       1, with 2 segments of 2 to 3 tokens",
        "slots      8: 5 real, 3 alignment, 0 tail (37.5% padding)",
        "targets    3",
        "positions  1 axis",
        "rule       causal",
        "lost       1 target(s): first tokens of pieces of split samples",
    ]
    assert repr(pickle.loads(pickle.dumps(batch))) == repr(batch)
