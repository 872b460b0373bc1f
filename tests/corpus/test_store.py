"""The token store: what goes in comes out, without copies where none are needed."""

import multiprocessing
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.corpus import Sample, TokenStore
from padless.corpus import store as store_module
from padless.corpus.shard import Shard
from padless.errors import PadlessError, ViolationError


def make_samples(lengths: list[int], masked: list[bool], vocab_size: int, seed: int = 0) -> list[Sample]:
    rng = np.random.default_rng(seed)
    samples = []
    for length, has_mask in zip(lengths, masked, strict=True):
        targets = rng.random(length) < 0.5
        targets[:1] = False
        samples.append(Sample(rng.integers(0, vocab_size, length), targets if has_mask else None))
    return samples


@st.composite
def corpora(draw):
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=30))
    masked = draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    vocab_size = draw(st.sampled_from([2, 256, 257, 65_536, 65_537]))
    return make_samples(lengths, masked, vocab_size, draw(st.integers(0, 99))), vocab_size


@settings(max_examples=40, deadline=None)
@given(corpus=corpora(), shard_tokens=st.integers(1, 200))
def test_every_sample_comes_back(tmp_path_factory, corpus, shard_tokens):
    samples, vocab_size = corpus
    store = TokenStore.write(tmp_path_factory.mktemp("s"), samples, vocab_size=vocab_size, shard_tokens=shard_tokens)
    assert len(store) == len(samples)
    assert store.lengths.tolist() == [len(sample) for sample in samples]
    for i, (got, sample) in enumerate(zip(store, samples, strict=True)):
        assert got.sample_id == i
        np.testing.assert_array_equal(got.input_ids, sample.input_ids)
        np.testing.assert_array_equal(got.target_mask(), sample.target_mask())
        assert store.source_of(i) == ("<arrays>", i)
    assert store.manifest.counts.targets == sum(int(sample.target_mask().sum()) for sample in samples)


def gather_naively(samples, sample_ids, starts, lengths):
    tokens, targets = [], []
    for i, start, length in zip(sample_ids, starts, lengths, strict=True):
        tokens.extend(samples[i].input_ids[start : start + length].tolist())
        segment = samples[i].target_mask()[start : start + length].copy()
        segment[:1] = False
        targets.extend(segment.tolist())
    return tokens, targets


@settings(max_examples=60, deadline=None)
@given(corpus=corpora(), shard_tokens=st.integers(1, 200), data=st.data())
def test_gather_equals_the_naive_loop(tmp_path_factory, corpus, shard_tokens, data):
    samples, vocab_size = corpus
    store = TokenStore.write(tmp_path_factory.mktemp("s"), samples, vocab_size=vocab_size, shard_tokens=shard_tokens)
    ids = data.draw(st.lists(st.integers(0, len(samples) - 1), max_size=12))
    starts = [data.draw(st.integers(0, len(samples[i]))) for i in ids]
    lengths = [data.draw(st.integers(0, len(samples[i]) - start)) for i, start in zip(ids, starts, strict=True)]
    tokens, targets = store.gather(ids, starts, lengths)
    assert targets.dtype == np.bool_
    assert (tokens.tolist(), targets.tolist()) == gather_naively(samples, ids, starts, lengths)


def test_gather_of_neighbours_is_a_view_of_the_file(tmp_path):
    samples = make_samples([5, 9, 3, 7], [True] * 4, 1000)
    store = TokenStore.write(tmp_path, samples, vocab_size=1000)
    tokens, targets = store.gather([1, 2, 3], [2, 0, 0], [7, 3, 7])
    assert not tokens.flags.owndata
    assert not tokens.flags.writeable
    assert np.shares_memory(tokens, store[1].input_ids)
    assert (tokens.tolist(), targets.tolist()) == gather_naively(samples, [1, 2, 3], [2, 0, 0], [7, 3, 7])


def test_samples_are_views_of_the_file(tmp_path):
    store = TokenStore.write(tmp_path, [[1, 2, 3]], vocab_size=10)
    assert store[0].input_ids.dtype == np.uint8
    assert not store[0].input_ids.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        store[0].input_ids[0] = 9


def test_opening_reads_no_shard(tmp_path, monkeypatch):
    TokenStore.write(tmp_path, [[1, 2, 3]] * 50, vocab_size=10, shard_tokens=12)

    def refuse(path):
        raise AssertionError(f"{path} was opened")

    monkeypatch.setattr(store_module, "Shard", refuse)
    store = TokenStore(tmp_path)
    assert len(store) == 50
    with pytest.raises(AssertionError, match="tokens-00003"):
        store[15]


def test_reading_keeps_no_file_open(tmp_path):
    store = TokenStore.write(tmp_path, [[1, 2, 3]] * 50, vocab_size=10, shard_tokens=3)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert store.gather(range(50), [0] * 50, [3] * 50)[0].sum() == 300
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_slices_and_negative_numbers(tmp_path):
    store = TokenStore.write(tmp_path, [[1], [2], [3]], vocab_size=10)
    assert [sample.input_ids.tolist() for sample in store[1:]] == [[2], [3]]
    assert store[-1].sample_id == 2
    for outside in (3, -4):
        with pytest.raises(IndexError, match="store of 3 samples"):
            store[outside]


def _read_in_worker(store, queue):
    queue.put(store[1].input_ids.tolist())


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_reopen_the_store(tmp_path, method):
    store = TokenStore.write(tmp_path, [[1, 2], [3, 4]], vocab_size=10)
    assert store[0].input_ids.tolist() == [1, 2]
    assert len(pickle.dumps(store)) < 400
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    worker = context.Process(target=_read_in_worker, args=(store, queue))
    worker.start()
    assert queue.get(timeout=60) == [3, 4]
    worker.join()


def test_a_replaced_store_is_not_taken_for_the_old_one(tmp_path):
    old = pickle.dumps(TokenStore.write(tmp_path / "a", [[1, 2]], vocab_size=10))
    (tmp_path / "a").rename(tmp_path / "b")
    TokenStore.write(tmp_path / "a", [[1, 3]], vocab_size=10)
    with pytest.raises(pickle.UnpicklingError, match="replaced"):
        pickle.loads(old)


def test_the_fingerprint_names_tokens_and_targets(tmp_path):
    base = TokenStore.write(tmp_path / "a", [[1, 2]], vocab_size=10)
    same = TokenStore.write(tmp_path / "b", [[1, 2]], vocab_size=10)
    masked = TokenStore.write(tmp_path / "c", [Sample(np.array([1, 2]), np.zeros(2, bool))], vocab_size=10)
    assert base.fingerprint == same.fingerprint
    assert base.fingerprint != masked.fingerprint


def test_a_segment_outside_its_sample_is_refused(tmp_path):
    store = TokenStore.write(tmp_path, [[1, 2], [3, 4]], vocab_size=10)
    with pytest.raises(PadlessError, match=r"tokens 1\.\.3 of sample 1, which has 2"):
        store.gather([0, 1], [0, 1], [2, 2])
    with pytest.raises(PadlessError, match="store of 2 samples"):
        store.gather([2], [0], [1])


def test_a_cut_or_missing_shard_is_found_on_opening(tmp_path):
    TokenStore.write(tmp_path, [[1, 2], [3, 4]], vocab_size=10)
    shard = tmp_path / "tokens-00000.arrow"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1])
    with pytest.raises(ViolationError, match=f"has {len(data) - 1} bytes where manifest.json says {len(data)}"):
        TokenStore(tmp_path)
    shard.unlink()
    with pytest.raises(ViolationError, match="is missing"):
        TokenStore(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "not a padless store"), (b"{", "not a manifest"), (b'{"format": 99}', "format 99")],
)
def test_what_is_no_store_says_so(tmp_path, content, message):
    if content is not None:
        (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(PadlessError, match=message):
        TokenStore(tmp_path)
    with pytest.raises(PadlessError, match="does not exist"):
        TokenStore(tmp_path / "nowhere")


def test_writing_refuses_ids_outside_the_vocabulary_and_full_folders(tmp_path):
    with pytest.raises(PadlessError, match=r"sample 1 has token ids 3\.\.10, outside the vocabulary of 10"):
        TokenStore.write(tmp_path / "a", [[1], [3, 10]], vocab_size=10)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(PadlessError, match="not empty"):
        TokenStore.write(tmp_path, [[1]], vocab_size=10)


@pytest.mark.parametrize(
    ("ids", "targets", "message"),
    [
        (np.zeros((2, 2), np.int64), None, "one-dimensional"),
        (np.zeros(2), None, "whole numbers"),
        (np.zeros(2, np.int64), np.zeros(3, bool), "one bool per token"),
        (np.zeros(2, np.int64), np.ones(2, bool), "first token"),
    ],
)
def test_a_sample_checks_itself(ids, targets, message):
    with pytest.raises(PadlessError, match=message):
        Sample(ids, targets)


def test_shards_end_at_the_same_samples_however_blocks_are_cut(tmp_path):
    samples = make_samples([4] * 25, [False] * 25, 10)
    one_by_one = TokenStore.write(tmp_path / "a", samples, vocab_size=10, shard_tokens=30)
    assert [shard.samples for shard in one_by_one.manifest.shards] == [8, 8, 8, 1]
    assert [len(Shard(Path(one_by_one.path) / s.name)) for s in one_by_one.manifest.shards] == [8, 8, 8, 1]
