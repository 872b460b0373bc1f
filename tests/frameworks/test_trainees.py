"""The model that `padless bench` trains: four ways, one set of weights, the same gradients."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from padless.errors import PadlessError
from padless.frameworks.trainees import load_trainee, make_trainee
from padless.measure import Trainee
from padless.rows import Batch, collate
from padless.training import packed_loss

LENGTHS = (5, 17, 9)


@pytest.fixture(scope="module")
def trainee() -> Trainee:
    return load_trainee("llama-1m", dtype="float64")


def gradients(trainee: Trainee, run: Callable[[Batch], torch.Tensor], batches: list[Batch]) -> torch.Tensor:
    targets = sum(batch.num_targets for batch in batches)
    for batch in batches:
        packed_loss(run(batch), batch, denominator=targets).backward()
    found = torch.cat([p.grad.flatten() for p in trainee.parameters if p.grad is not None])
    for parameter in trainee.parameters:
        parameter.grad = None
    return found


def test_every_way_has_the_gradients_of_the_samples_alone(trainee: Trainee) -> None:
    rng = np.random.default_rng(0)
    samples = [rng.integers(0, trainee.vocabulary, length) for length in LENGTHS]
    alone = gradients(trainee, trainee.padded, [collate([sample]).torch() for sample in samples])
    rectangle = collate([[sample] for sample in samples], capacity=max(LENGTHS)).torch()
    row = collate([samples]).torch()
    for way, batch in (("padded", rectangle), ("masked", rectangle), ("dense", row), ("packed", row)):
        found = gradients(trainee, getattr(trainee, way), [batch])
        # Transformers' rotary embedding is float32 in any model, and so is what can be asked of it.
        assert float((found - alone).norm() / alone.norm()) < 1e-6, way


def test_a_leaking_row_would_be_seen(trainee: Trainee) -> None:
    rng = np.random.default_rng(0)
    samples = [rng.integers(0, trainee.vocabulary, length) for length in LENGTHS]
    row = collate([samples]).torch()
    leaks = gradients(trainee, trainee.padded, [row])  # one row as if it were one sample
    assert float((leaks - gradients(trainee, trainee.packed, [row])).norm() / leaks.norm()) > 1e-3


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(PadlessError, match="expected llama-1m, llama-20m"):
        load_trainee("llama-1t")
    with pytest.raises(PadlessError, match="no such torch dtype"):
        load_trainee("llama-1m", dtype="float33")
    with pytest.raises(PadlessError, match="causal language models"):
        make_trainee(torch.nn.Linear(2, 2), name="a layer")
