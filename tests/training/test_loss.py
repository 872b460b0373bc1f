"""The loss of packed rows equals the loss of the samples alone, gradients included (promises 7 and 8)."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from padless.errors import PadlessError
from padless.rows import collate
from padless.training.loss import count_targets, normalize_gradients, packed_linear_loss, packed_loss

VOCAB = 11


@st.composite
def corpora(draw: st.DrawFn) -> list[dict[str, np.ndarray]]:
    """Samples of 1 to 9 tokens with random targets, at least one target in all."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    samples = [{"input_ids": generator.integers(0, VOCAB, n), "targets": generator.random(n) < 0.6} for n in sizes]
    samples.append({"input_ids": generator.integers(0, VOCAB, 3), "targets": np.array([False, True, True])})
    return samples


def alone(table: torch.Tensor, samples: list[dict[str, np.ndarray]]) -> list[torch.Tensor]:
    """Each sample's token losses, computed by itself with a bigram model `logits = table[token]`."""
    losses = []
    for sample in samples:
        ids = torch.as_tensor(sample["input_ids"])
        targets = torch.as_tensor(sample["targets"])[1:]
        losses.append(cross_entropy(table[ids[:-1]], ids[1:], reduction="none")[targets])
    return losses


def expected(table: torch.Tensor, samples: list[dict[str, np.ndarray]], reduction: str) -> torch.Tensor:
    each = [loss for loss in alone(table, samples) if len(loss)]
    return torch.cat(each).mean() if reduction == "per-token" else torch.stack([x.mean() for x in each]).mean()


def fresh_table() -> torch.Tensor:
    return torch.randn(VOCAB, VOCAB, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("reduction", ["per-token", "per-sample"])
@given(samples=corpora(), align=st.sampled_from([1, 4]), cut=st.integers(0, 7))
@settings(max_examples=40, deadline=None)
def test_any_rows_give_the_loss_and_gradient_of_the_samples_alone(reduction, samples, align, cut) -> None:
    table = fresh_table().requires_grad_()
    want = expected(table, samples, reduction)
    (want_gradient,) = torch.autograd.grad(want, table)

    batches = [collate([part], align=align, capacity=64).torch() for part in (samples[:cut], samples[cut:]) if part]
    denominator = count_targets(batches, reduction=reduction)
    losses = [packed_loss(table[b.input_ids], b, reduction=reduction, denominator=denominator) for b in batches]
    (gradient,) = torch.autograd.grad(torch.stack(losses).sum(), table)

    torch.testing.assert_close(torch.stack(losses).sum(), want, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, want_gradient, rtol=1e-10, atol=1e-14)


@given(samples=corpora())
@settings(max_examples=20, deadline=None)
def test_weights_of_one_are_per_token(samples) -> None:
    weighted = [{**sample, "loss_weights": np.ones(len(sample["input_ids"]))} for sample in samples]
    logits = fresh_table()
    batch, plain = collate([weighted]).torch(), collate([samples]).torch()
    torch.testing.assert_close(
        packed_loss(logits[batch.input_ids], batch, reduction="weighted"), packed_loss(logits[plain.input_ids], plain)
    )


def test_a_mean_of_means_would_not_pass() -> None:
    """The check of the checks: unequal micro-batches do change the objective when each is divided by its own count."""
    table = fresh_table()
    samples = [{"input_ids": np.arange(n) % VOCAB, "targets": np.ones(n, bool)} for n in (2, 9)]
    batches = [collate([[sample]]).torch() for sample in samples]
    wrong = torch.stack([packed_loss(table[b.input_ids], b) for b in batches]).mean()
    assert abs(wrong - expected(table, samples, "per-token")) > 1e-3


@pytest.mark.parametrize("fused", [True, False])
@given(samples=corpora(), reduction=st.sampled_from(["per-token", "per-sample"]))
@settings(max_examples=15, deadline=None)
def test_the_linear_loss_never_holds_all_logits_and_gives_the_same(fused, samples, reduction) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if not fused:
            patch.delattr(torch.nn.functional, "linear_cross_entropy", raising=False)
        batch = collate([samples], capacity=64).torch()
        generator = torch.Generator().manual_seed(1)
        hidden = torch.randn(64, 5, dtype=torch.float64, generator=generator).requires_grad_()
        weight = torch.randn(VOCAB, 5, dtype=torch.float64, generator=generator).requires_grad_()
        want = packed_loss(hidden @ weight.T, batch, reduction=reduction)
        got = packed_linear_loss(hidden, weight, batch, reduction=reduction, chunk=7)
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)
        for mine, theirs in zip(
            torch.autograd.grad(got, [hidden, weight]), torch.autograd.grad(want, [hidden, weight]), strict=True
        ):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-13)


def test_garbage_in_padded_slots_moves_nothing() -> None:
    batch = collate([[[1, 2, 3], [4, 5]]], align=4, capacity=16).torch()
    logits = torch.randn(16, VOCAB)
    spoiled = torch.where((batch.segment_ids == 0)[:, None], torch.full_like(logits, 7e4), logits)
    assert packed_loss(logits, batch) == packed_loss(spoiled, batch)


def test_split_samples_weigh_once() -> None:
    """Two pieces of one sample in one batch are one sample to `per-sample`."""
    whole = {"input_ids": [1, 2, 3, 4], "sample_id": 5}
    piece = {"input_ids": [5, 6, 7], "sample_id": 5}
    other = {"input_ids": [8, 9], "sample_id": 6}
    batch = collate([[whole, piece, other]]).torch()
    assert count_targets(batch, reduction="per-sample") == 2
    logits = fresh_table()[batch.input_ids]
    losses = cross_entropy(logits[:-1], batch.labels[1:], reduction="none", ignore_index=-100)
    want = (losses[:6].sum() / 5 + losses[7:].sum() / 1) / 2
    torch.testing.assert_close(packed_loss(logits, batch, reduction="per-sample"), want)


def test_wrong_use_is_refused() -> None:
    batch = collate([[1, 2, 3]], loss_weights="per-sample").torch()
    with pytest.raises(PadlessError, match="carries loss_weights"):
        packed_loss(torch.zeros(3, VOCAB), batch)
    with pytest.raises(PadlessError, match=r"shape \(2, 11\) and the batch has 3 slots"):
        packed_loss(torch.zeros(2, VOCAB), batch)
    with pytest.raises(PadlessError, match="'mean' is unknown"):
        packed_loss(torch.zeros(3, VOCAB), batch, reduction="mean")  # type: ignore[arg-type]
    with pytest.raises(PadlessError, match="has 0 targets"):
        normalize_gradients([], 0)
    with pytest.raises(PadlessError, match="this batch has none"):
        packed_loss(torch.zeros(3, VOCAB), collate([[1, 2, 3]]).torch(), reduction="weighted")


def test_a_step_without_targets_gives_zero_and_not_nan() -> None:
    batch = collate([{"input_ids": [1, 2], "targets": [False, False]}]).torch()
    logits = torch.randn(2, VOCAB, requires_grad=True)
    loss = packed_loss(logits, batch)
    loss.backward()
    assert loss == 0
    assert logits.grad is not None
    assert (logits.grad == 0).all()
