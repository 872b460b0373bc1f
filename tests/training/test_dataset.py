"""Rows out of a store: against a loop over segments, whatever the plan; refused when it is not theirs."""

import pickle
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from padless import Rule, TokenStore, plan
from padless.corpus.manifest import TokenizerEntry
from padless.corpus.tokenizers import load_tokenizer
from padless.errors import PadlessError
from padless.training import PackedDataset


def naive_row(dataset: PackedDataset, row: int) -> tuple[list[int], list[int], list[int]]:
    """Tokens, labels and positions of a row without padding, segment by segment."""
    ids, labels, positions = [], [], []
    for sample_id, start, length in zip(*(part.tolist() for part in dataset.plan.row(row)), strict=True):
        sample = dataset.store[sample_id]
        mask = sample.target_mask()
        for i in range(length):
            token = int(sample.input_ids[start + i])
            ids.append(token)
            labels.append(token if i > 0 and mask[start + i] else -100)
            positions.append(i)
    return ids, labels, positions


SETTINGS = st.fixed_dictionaries(
    {
        "oversize": st.sampled_from(["truncate", "split", "drop"]),
        "max_segments": st.sampled_from([None, 1, 3]),
        "seed": st.integers(0, 3),
    }
)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=25), SETTINGS)
@settings(deadline=None, max_examples=40)
def test_rows_hold_what_the_plan_says(tmp_path_factory, lengths: list[int], given: dict) -> None:
    folder = tmp_path_factory.mktemp("rows") / "store"
    rng = np.random.default_rng(0)
    store = TokenStore.write(folder, [rng.integers(0, 500, n) for n in lengths], vocab_size=500, shard_tokens=50)
    if given["oversize"] == "drop" and min(lengths) > 16:
        return
    dataset = PackedDataset(store, plan=plan(store.lengths, 16, **given))
    lost = 0
    for row in range(len(dataset)):
        batch = dataset[row]
        expected = naive_row(dataset, row)
        assert (batch.input_ids.tolist(), batch.labels.tolist(), batch.position_ids.tolist()) == expected
        assert batch.sample_ids.tolist() == dataset.plan.row(row)[0].tolist()
        lost += batch.targets_lost
    assert lost == int((dataset.plan.starts > 0).sum()), "every later piece of these samples begins with a target"


def test_targets_lost_are_counted_only_where_there_was_one(make_dataset) -> None:
    dataset = make_dataset([40, 25, 7], 10, oversize="split")
    expected = sum(
        bool(dataset.store[i].target_mask()[start])
        for i, start in zip(dataset.plan.sample_ids.tolist(), dataset.plan.starts.tolist(), strict=True)
        if start > 0
    )
    assert 0 < expected < int((dataset.plan.starts > 0).sum())
    assert sum(row.targets_lost for row in dataset) == expected


def test_many_rows_at_once_are_the_rows_one_by_one(dataset: PackedDataset) -> None:
    rows = [7, 0, 3]
    together = dataset.__getitems__(rows)
    assert together.num_rows == 3
    for name in ("input_ids", "labels", "position_ids", "sample_ids"):
        one_by_one = np.concatenate([getattr(dataset[row], name) for row in rows])
        np.testing.assert_array_equal(getattr(together, name), one_by_one)
    assert len(list(dataset)) == len(dataset)
    np.testing.assert_array_equal(dataset[-1].input_ids, dataset[len(dataset) - 1].input_ids)


def test_options_reach_the_batch(make_dataset) -> None:
    options = {"pad_rows": True, "align": 4, "pad_id": 9, "position_start": 2, "loss_weights": "per-sample"}
    batch = make_dataset([5, 3, 6, 2], 16, align=4, options=options).__getitems__([0, 1])
    assert batch.num_slots == 32
    assert batch.rectangle(batch.input_ids).shape == (2, 16)
    assert batch.align == 4
    assert (batch.input_ids[batch.segment_ids == 0] == 9).all()
    assert batch.position_ids.min() == 2
    assert batch.loss_weights is not None


def test_align_comes_from_the_plan(make_dataset) -> None:
    assert make_dataset([5, 3, 6, 2], 16, align=4)[0].align == 4


@pytest.mark.parametrize("row", [1000, -1000])
def test_a_row_that_is_not_there(dataset: PackedDataset, row: int) -> None:
    with pytest.raises(IndexError, match=r"of \d+ rows"):
        dataset[row]


def test_a_plan_for_other_lengths_is_refused(dataset: PackedDataset) -> None:
    other = plan(np.append(dataset.store.lengths, 3), 32)
    with pytest.raises(PadlessError, match="made for other lengths") as error:
        PackedDataset(dataset.store, plan=other)
    assert other.fingerprint in str(error.value)
    assert dataset.plan.fingerprint in str(error.value)


def test_a_rule_that_a_store_cannot_serve_is_refused(dataset: PackedDataset) -> None:
    with pytest.raises(PadlessError, match="needs the rank of every token"):
        PackedDataset(dataset.store, plan=dataset.plan, rule=Rule(kind="prefix-lm"))


def test_a_saved_plan_is_found_by_capacity(dataset: PackedDataset, tmp_path: Path) -> None:
    store = TokenStore.write(tmp_path / "s", [[1, 2, 3], [4, 5]], vocab_size=10)
    for capacity in (4, 8):
        store.add_plan(plan(store.lengths, capacity))
    assert len(PackedDataset(tmp_path / "s", plan=4)) == 2
    assert len(PackedDataset(str(tmp_path / "s"), plan=8)) == 1
    with pytest.raises(PadlessError, match="say which"):
        PackedDataset(tmp_path / "s")


def test_a_data_set_pickles_small_and_reopens(dataset: PackedDataset) -> None:
    again = pickle.loads(pickle.dumps(dataset))
    np.testing.assert_array_equal(again[3].input_ids, dataset[3].input_ids)


def tokenizer_file(path: Path, words: list[str]) -> str:
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    backend.save(str(path))
    return str(path)


def test_the_tokenizer_that_trains_is_the_one_that_packed(dataset: PackedDataset, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    def loaded(file: str) -> PreTrainedTokenizerFast:
        folder = Path(file).with_suffix("")
        folder.mkdir(exist_ok=True)
        shutil.copy(file, folder / "tokenizer.json")
        return PreTrainedTokenizerFast.from_pretrained(folder)

    ours = tokenizer_file(tmp_path / "ours.json", ["?", "a", "b", "</s>"])
    other = tokenizer_file(tmp_path / "other.json", ["?", "b", "a", "</s>"])
    entry = TokenizerEntry(
        name="ours",
        fingerprint=load_tokenizer(ours).fingerprint,
        vocab_size=4,
        eod_id=3,
        pad_id=None,
        template_fingerprint=None,
    )
    store = TokenStore(dataset.store.path)
    store.manifest = msgspec.structs.replace(store.manifest, tokenizer=entry)
    for good in (ours, load_tokenizer(ours), loaded(ours)):
        assert len(PackedDataset(store, plan=dataset.plan, tokenizer=good)) == len(dataset)
    for bad in (other, load_tokenizer(other), loaded(other)):
        with pytest.raises(PadlessError, match="the same ids would mean other text") as error:
            PackedDataset(store, plan=dataset.plan, tokenizer=bad)
        assert entry.fingerprint in str(error.value)
        assert load_tokenizer(other).fingerprint in str(error.value)
    with pytest.raises(PadlessError, match="no fingerprint to compare"):
        PackedDataset(store, plan=dataset.plan, tokenizer=object())
    grown = loaded(ours)
    grown.add_tokens(["new"])
    with pytest.raises(PadlessError, match="in 1 tokens"):
        PackedDataset(store, plan=dataset.plan, tokenizer=grown)


def test_a_store_of_arrays_has_no_tokenizer_to_check(dataset: PackedDataset) -> None:
    with pytest.raises(PadlessError, match="names no tokenizer"):
        PackedDataset(dataset.store, plan=dataset.plan, tokenizer="bytes")
