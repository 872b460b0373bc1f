"""Long segments are copied one by one, short ones through an index; both give what a loop gives."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless import TokenStore
from padless.corpus import Sample, store


def naive(corpus: TokenStore, ids: list[int], starts: list[int], lengths: list[int]) -> tuple[list[int], list[bool]]:
    tokens, targets = [], []
    for i, start, length in zip(ids, starts, lengths, strict=True):
        tokens += corpus[i].input_ids[start : start + length].tolist()
        targets += [False, *corpus[i].target_mask()[start + 1 : start + length].tolist()][:length]
    return tokens, targets


def corpus_of(folder: Path, targets: str) -> TokenStore:
    """Three shards of samples of 1 to 60 tokens; which of them say their targets."""
    rng = np.random.default_rng(3)
    samples = []
    for number in range(30):
        n = int(rng.integers(1, 61))
        mask = rng.random(n) < 0.5
        mask[0] = False
        said = targets == "all" or (targets == "some" and number < 10)
        samples.append(Sample(rng.integers(0, 500, n), mask if said else None))
    return TokenStore.write(folder, samples, vocab_size=500, shard_tokens=400)


@pytest.mark.parametrize("targets", ["all", "some", "none"])
@pytest.mark.parametrize("threshold", [0, 1 << 30], ids=["slices", "index"])
def test_both_ways_equal_a_loop(targets: str, threshold: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SLICED_TOKENS", threshold)
    corpus = corpus_of(tmp_path, targets)
    assert len(corpus.manifest.shards) > 1

    @given(st.data())
    @settings(deadline=None, max_examples=40)
    def run(data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.integers(0, len(corpus) - 1), max_size=8))
        starts = [data.draw(st.integers(0, int(corpus.lengths[i]))) for i in ids]
        lengths = [data.draw(st.integers(0, int(corpus.lengths[i]) - s)) for i, s in zip(ids, starts, strict=True)]
        tokens, mask = corpus.gather(ids, starts, lengths)
        assert (tokens.dtype, mask.dtype) == (np.uint16, np.bool_)
        assert (tokens.tolist(), mask.tolist()) == naive(corpus, ids, starts, lengths)

    run()
