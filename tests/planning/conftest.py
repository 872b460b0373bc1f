"""Real lengths that several tests use."""

import json
from pathlib import Path

import numpy as np
import pytest

from padless.lengths import LengthHistogram


@pytest.fixture(scope="session")
def wikipedia(shared_data: Path) -> LengthHistogram:
    """16,279,552 sequences of up to 512 tokens (Krell et al. 2021)."""
    return LengthHistogram.from_counts(
        json.loads((shared_data / "wikipedia_bert_512_histogram.json").read_text())["counts"]
    )


@pytest.fixture(scope="session")
def squad(shared_data: Path) -> LengthHistogram:
    """88,641 sequences of up to 384 tokens (Krell et al. 2021)."""
    return LengthHistogram.from_counts(
        json.loads((shared_data / "squad_1_1_bert_384_histogram.json").read_text())["counts"]
    )


@pytest.fixture(scope="session")
def gsm8k(shared_data: Path) -> np.ndarray:
    """Token counts of 7,473 school problems."""
    found = json.loads((shared_data / "token_lengths_cl100k.json").read_text())
    return np.array(found["gsm8k_train_qa"]["lengths"])


@pytest.fixture(scope="session")
def azure_chat(shared_data: Path) -> np.ndarray:
    """Prompt and answer tokens of 19,366 chat requests together."""
    return np.load(shared_data / "azure_llm_2023_conv_lengths.npy").sum(axis=1)
