"""Small stores and their rows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from padless import TokenStore, plan
from padless.corpus import Sample
from padless.training import PackedDataset


def make_store(folder: Path, lengths: list[int], *, shard_tokens: int = 64, seed: int = 0) -> TokenStore:
    """A store of several shards whose samples have random tokens and random targets."""
    rng = np.random.default_rng(seed)
    samples = []
    for n in lengths:
        targets = rng.random(n) < 0.6
        targets[0] = False
        samples.append(Sample(rng.integers(0, 500, n), targets))
    return TokenStore.write(folder, samples, vocab_size=500, shard_tokens=shard_tokens)


@pytest.fixture
def make_dataset(tmp_path: Path) -> Callable[..., PackedDataset]:
    """Makes a data set of samples of these lengths, planned with these settings."""

    def make(lengths: list[int], capacity: int, *, options: dict | None = None, **settings) -> PackedDataset:
        store = make_store(tmp_path / f"store-{len(list(tmp_path.iterdir()))}", lengths)
        return PackedDataset(store, plan=plan(store.lengths, capacity, **settings), **(options or {}))

    return make


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    """Some 30 rows of 32 tokens, samples of 1 to 30 tokens."""
    lengths = np.random.default_rng(1).integers(1, 31, 60).tolist()
    store = make_store(tmp_path_factory.mktemp("store") / "store", lengths)
    return PackedDataset(store, plan=plan(store.lengths, 32))
