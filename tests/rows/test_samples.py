"""What collate takes as a sample, and what it refuses with a reason."""

from types import SimpleNamespace

import numpy as np
import pytest

from padless.corpus import Sample
from padless.errors import PadlessError
from padless.rows import Rule, collate
from padless.rows.samples import looks_shifted

IDS = [5, 6, 7, 8]
SAME = {
    "labels": {"input_ids": IDS, "labels": [-100, -100, 7, 8]},
    "targets": {"input_ids": IDS, "targets": [False, False, True, True]},
    "loss_mask": {"input_ids": IDS, "loss_mask": [0, 0, 1, 1]},
    "loss_mask of floats": {"input_ids": np.array(IDS, np.uint32), "loss_mask": np.array([0.0, 0, 1, 1])},
    "an object": SimpleNamespace(input_ids=np.array(IDS), targets=np.array([False, False, True, True])),
    "the corpus' Sample": Sample(np.array(IDS, np.uint16), np.array([False, False, True, True]), 3),
}


@pytest.mark.parametrize("sample", SAME.values(), ids=SAME)
def test_every_form_of_a_sample_says_the_same(sample) -> None:
    batch = collate([sample, [1, 2]])
    assert batch.input_ids.tolist() == [5, 6, 7, 8, 1, 2]
    assert batch.labels.tolist() == [-100, -100, 7, 8, -100, 2]


def test_tensors_are_samples_too() -> None:
    import torch

    batch = collate([{"input_ids": torch.tensor(IDS), "labels": torch.tensor([-100, -100, 7, 8])}, torch.tensor([1])])
    assert batch.labels.tolist() == [-100, -100, 7, 8, -100]


def test_a_flat_list_is_one_row_and_a_nested_one_several() -> None:
    assert collate([[1, 2], [3]]).num_rows == 1
    assert collate([[[1, 2], [3]], [[4]]]).num_rows == 2
    assert collate([np.arange(3), np.arange(2)]).num_segments == 2
    assert collate([[{"input_ids": [1]}], [{"input_ids": [2]}]]).num_rows == 2


REFUSED = {
    "nothing": ([], {}, "no segments"),
    "an empty sample": ([[1, 2], []], {}, "segment 1 holds no tokens"),
    "no input_ids": ([{"tokens": [1]}], {}, "row 0, sample 0 has no input_ids"),
    "floats": ([{"input_ids": [1.5]}], {}, "whole numbers"),
    "labels too short": ([{"input_ids": [1, 2], "labels": [1]}], {}, r"labels has shape \(1,\) for 2"),
    "two sayings": ([{"input_ids": [1, 2], "labels": [-100, 2], "targets": [0, 1]}], {}, "more than one of"),
    "shifted labels": ([[1], {"input_ids": IDS, "labels": [6, 7, 8, -100]}], {}, "sample 1: labels are shifted"),
    "weights in some": ([{"input_ids": [1], "loss_weights": [1.0]}, [2]], {}, "1 of 2 samples have loss_weights"),
    "weights twice": (
        [{"input_ids": [1], "loss_weights": [1.0]}],
        {"loss_weights": "per-sample"},
        "bring their own loss_weights",
    ),
    "an unknown weighting": ([[1]], {"loss_weights": "per-token"}, "'per-token' is unknown"),
    "no prefix lengths": ([[1]], {"rule": Rule(kind="prefix-lm")}, "needs prefix_lengths"),
    "needless blocks": ([{"input_ids": [1], "blocks": [0]}], {}, "has no use for them"),
    "a row beyond capacity": ([[[1], [2]], [[1, 2, 3], [4, 5]]], {"capacity": 4}, "row 1 takes 5 slots"),
    "a row beyond capacity by alignment": ([[1], [2], [3]], {"capacity": 8, "align": 4}, "row 0 takes 12 slots"),
    "capacity off the alignment": ([[1]], {"capacity": 6, "align": 4}, "give capacity=8"),
    "no slots": ([[1]], {"align": 0}, "align=0"),
    "positions without axes": ([{"input_ids": [1], "position_ids": [0]}], {}, r"must be \[axes, tokens\]"),
}


@pytest.mark.parametrize(("samples", "options", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_says_why(samples, options, reason: str) -> None:
    with pytest.raises(PadlessError, match=reason):
        collate(samples, **options)


@pytest.mark.parametrize(
    ("labels", "shifted"),
    [
        ([5, 6, 7, 8], False),
        ([-100, -100, 7, 8], False),
        ([6, 7, 8, -100], True),
        ([-100, 7, 8, 9], True),
        ([-100, -100, -100, -100], False),
        ([9, 9, 9, 9], False),
    ],
)
def test_shifted_labels_are_recognised(labels: list[int], shifted: bool) -> None:
    assert looks_shifted(np.array(IDS), np.array(labels)) == shifted


def test_equal_tokens_are_not_taken_for_a_shift() -> None:
    assert not looks_shifted(np.array([3, 3, 3, 3]), np.array([-100, 3, 3, 3]))
