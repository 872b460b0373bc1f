"""Lengths that several tests schedule."""

from pathlib import Path

import numpy as np
import pytest

from padless.training.scheduling import Cost

SEVEN_B = Cost(linear=49_152, quadratic=1)
"""A 7B model: 12 * 4,096 multiply-adds of a token outside attention for one causal pair's."""


@pytest.fixture(scope="session")
def azure_chat(shared_data: Path) -> np.ndarray:
    """Prompt and answer tokens of 19,366 chat requests together."""
    return np.load(shared_data / "azure_llm_2023_conv_lengths.npy").sum(axis=1)


@pytest.fixture(scope="session")
def long_tail() -> np.ndarray:
    """A log-normal with a tail to 128K: half below 2,048 tokens, 1 in 100 above 67,000, 3 in 1,000 at 131,072."""
    drawn = np.random.default_rng(0).normal(np.log(2048), 1.5, 80_000)
    return np.minimum(np.exp(drawn).astype(np.int64) + 1, 131_072)
