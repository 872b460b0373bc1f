"""Samples are found by content, wherever the collator puts them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.auditing.layout import LayoutError, locate
from padless.auditing.samples import make_samples, ordinary_tokens, perturb


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    gaps=st.lists(st.integers(0, 3), min_size=7, max_size=7),
    seed=st.integers(0, 99),
)
def test_spans_hold_the_samples_tokens(lengths: list[int], gaps: list[int], seed: int) -> None:
    samples = make_samples(vocab_size=200, seed=seed, eod=None, forbidden=frozenset({0}), lengths=lengths)
    order = np.random.default_rng(seed).permutation(len(samples))
    row: list[int] = []
    for gap, i in zip(gaps, order, strict=False):
        row += [0] * gap + samples[i]["input_ids"]
    layout = locate(np.array([row]), samples)
    for sample, (start, stop) in zip(samples, layout.spans, strict=True):
        assert row[start:stop] == sample["input_ids"]
    assert int(layout.padding.sum()) == row.count(0)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 999), which=st.integers(0, 4), vocabulary=st.integers(8, 90))
def test_a_perturbation_changes_every_token_of_one_sample_only(seed: int, which: int, vocabulary: int) -> None:
    samples = make_samples(vocab_size=vocabulary, seed=seed, eod=1, forbidden=frozenset({0}))
    ordinary = ordinary_tokens(vocabulary, frozenset({0, 1}))
    changed = perturb(samples, which, rng=np.random.default_rng(seed), ordinary=ordinary)
    for i, (before, after) in enumerate(zip(samples, changed, strict=True)):
        same = np.array(before["input_ids"]) == np.array(after["input_ids"])
        assert not same.any() if i == which else same.all()
        assert [label == -100 for label in before["labels"]] == [label == -100 for label in after["labels"]]
    assert set(changed[which]["input_ids"]) <= set(ordinary.tolist())


def test_a_missing_last_token_is_counted() -> None:
    layout = locate(np.array([5, 6, 8, 9]), [{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}])
    assert layout.spans == ((0, 2), (2, 4))
    assert layout.lost == (1, 0)


def test_a_sample_that_is_not_there_is_an_error() -> None:
    with pytest.raises(LayoutError, match="is not in the collated input_ids"):
        locate(np.array([5, 6, 7]), [{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}])


def test_samples_do_not_straddle_rows() -> None:
    with pytest.raises(LayoutError):
        locate(np.array([[1, 2], [3, 4]]), [{"input_ids": [2, 3]}])
