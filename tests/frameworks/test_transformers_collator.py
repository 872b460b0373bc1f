"""`PackedCollator`: every shape of mini-batch becomes the same flat row with explicit boundaries."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from padless import collate
from padless.errors import PadlessError
from padless.frameworks.transformers import PackedCollator

SAMPLES = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8, 9], "labels": [-100, 9]}]


def same(a: dict, b: dict) -> bool:
    equal = (torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k] for k in a)
    return a.keys() == b.keys() and all(equal)


def test_samples_lists_of_samples_rows_and_batches_give_the_same_call():
    plain = PackedCollator()(SAMPLES)
    row = {"input_ids": [5, 6, 7, 8, 9], "labels": [-100, 6, 7, -100, 9], "seq_lengths": [3, 2]}
    assert plain["cu_seq_lens_q"].tolist() == [0, 3, 5]
    assert plain["labels"].tolist() == [[-100, 6, 7, -100, 9]]
    assert same(PackedCollator()([SAMPLES]), plain)
    assert same(PackedCollator()([[SAMPLES[0]], [SAMPLES[1]]]), plain)
    assert same(PackedCollator()([row]), plain)
    assert same(PackedCollator()(collate(SAMPLES)), plain)


def test_first_labels_of_segments_go_even_where_a_row_says_otherwise():
    batch = PackedCollator()([{"input_ids": [5, 6, 7, 8, 9], "labels": [5, 6, 7, 8, 9], "seq_lengths": [3, 2]}])
    assert batch["labels"].tolist() == [[-100, 6, 7, -100, 9]]


@pytest.mark.parametrize(
    ("columns", "labels"),
    [
        ({"completion_mask": [0, 0, 1]}, [-100, -100, 7]),
        ({"assistant_masks": [0, 1, 0]}, [-100, 6, -100]),
        ({"completion_mask": [0, 1, 1], "assistant_masks": [0, 1, 0]}, [-100, 6, -100]),
        ({"labels": [-100, -100, 7], "completion_mask": [1, 1, 1]}, [-100, -100, 7]),
        ({"attention_mask": [1, 1, 1], "position_ids": [9, 9, 9]}, [-100, 6, 7]),
    ],
)
def test_columns_of_trl_say_what_is_trained_on(columns, labels):
    batch = PackedCollator()([{"input_ids": [5, 6, 7], **columns}])
    assert batch["labels"].tolist() == [labels]
    assert batch["position_ids"].tolist() == [[0, 1, 2]]


def test_padding_is_a_segment_of_its_own_and_never_a_target():
    batch = PackedCollator(pad_to_multiple=8)(SAMPLES)
    assert batch["input_ids"].shape == (1, 8)
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 5, 8]
    assert batch["labels"][0, 5:].tolist() == [-100] * 3
    static = PackedCollator(static=(16, 6))(SAMPLES)
    assert static["input_ids"].shape == (1, 16)


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        ({"input_ids": [5, 6, 7], "seq_lengths": [3, 2]}, "add up to 5"),
        ({"input_ids": [5, 6, 7], "seq_lengths": []}, "add up to 0"),
        ({"input_ids": [5, 6, 0], "attention_mask": [1, 1, 0]}, "padded before packing"),
        ({"labels": [5, 6]}, "no input_ids"),
    ],
)
def test_what_does_not_add_up_is_refused(feature, message):
    with pytest.raises(PadlessError, match=message):
        PackedCollator()([feature])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4))
def test_nothing_is_lost_and_every_segment_starts_anew(rows):
    texts = [[list(range(3, 3 + n)) for n in row] for row in rows]
    features = [{"input_ids": list(itertools.chain(*row)), "seq_lengths": [len(text) for text in row]} for row in texts]
    batch = PackedCollator()(features)
    flat = [text for row in texts for text in row]
    assert batch["input_ids"][0].tolist() == list(itertools.chain(*flat))
    assert batch["cu_seq_lens_q"].tolist() == np.cumsum([0, *map(len, flat)]).tolist()
    starts = batch["cu_seq_lens_q"][:-1]
    assert (batch["position_ids"][0, starts] == 0).all()
    assert (batch["labels"][0, starts] == -100).all()
    assert int((batch["labels"] != -100).sum()) == sum(len(text) - 1 for text in flat)


@pytest.mark.parametrize("value", [[0.5, 1.0, 1.0], np.zeros((4, 3)), torch.zeros(3), [[1, 2], [3, 4]]])
def test_numbers_without_a_place_are_refused_and_text_may_stay(value):
    sample = {"input_ids": [1, 2, 3], "text": "abc", "messages": [{"role": "user", "content": "a"}], "id": 7}
    assert PackedCollator()([sample])["input_ids"].tolist() == [[1, 2, 3]]
    with pytest.raises(PadlessError, match=r"no place for: extra; what is in them would be lost"):
        PackedCollator()([{**sample, "extra": value}])
