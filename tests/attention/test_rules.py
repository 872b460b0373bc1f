"""A batch's rule, whatever it is, equals attention under its dense mask, on every backend that runs here."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from padless import Rule, collate, varlen_attention
from padless.errors import PadlessError
from padless.masks import dense_mask

VISIBILITY = ((True, False, False), (True, True, False), (True, False, True))


@st.composite
def batches(draw):
    kind = draw(st.sampled_from(["causal", "bidirectional", "prefix-lm", "block-causal"]))
    table = VISIBILITY if kind == "block-causal" and draw(st.booleans()) else None
    window = None if table else draw(st.sampled_from([None, (2, None), (3, 1)]))
    chunk = draw(st.sampled_from([None, 4])) if kind in ("causal", "bidirectional") else None
    samples = []
    for length in draw(st.lists(st.integers(1, 12), min_size=1, max_size=5)):
        sample = {"input_ids": list(range(length))}
        if kind == "prefix-lm":
            sample["prefix_length"] = draw(st.integers(0, length))
        if kind == "block-causal":
            sample["blocks"] = sorted(draw(st.lists(st.integers(0, 2), min_size=length, max_size=length)))
        samples.append(sample)
    rule = Rule(kind=kind, window=window, chunk=chunk, visibility=table)
    return collate(samples, rule=rule, align=draw(st.sampled_from([1, 4])))


def under_dense_mask(q, k, v, batch):
    """Softmax over the whole row; who sees nobody gets zeros."""
    seen = torch.from_numpy(np.asarray(dense_mask(batch)))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[2])
    blind = ~seen.any(1)
    scores = scores.masked_fill(~seen, -torch.inf).masked_fill(blind[:, None], 0.0)
    weights = torch.softmax(scores, -1).masked_fill(blind[:, None], 0.0)
    return torch.einsum("hqk,khd->qhd", weights, v)


@pytest.mark.parametrize("backend", ["segmented", "dense", "reference"])
@given(batch=batches(), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_every_rule_equals_its_dense_mask(backend, batch, seed):
    make = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(batch.num_slots, h, 8, generator=make, dtype=torch.float64).requires_grad_() for h in (4, 2, 2)
    )
    want = under_dense_mask(q, k, v, batch)
    got = varlen_attention(q, k, v, batch.torch(), backend=backend)
    torch.testing.assert_close(got, want, atol=1e-10, rtol=0)
    up = torch.randn(want.shape, generator=make, dtype=torch.float64)
    for a, b in zip(torch.autograd.grad(got, (q, k, v), up), torch.autograd.grad(want, (q, k, v), up), strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)


def test_lse_of_a_ranked_rule_is_put_together_from_its_calls():
    row = [{"input_ids": [1, 2, 3, 4], "prefix_length": 2}, {"input_ids": [5, 6], "prefix_length": 1}]
    batch = collate(row, rule=Rule(kind="prefix-lm"), align=4)
    q, k, v = torch.randn(3, batch.num_slots, 2, 8, dtype=torch.float64).unbind()
    _, lse = varlen_attention(q, k, v, batch, return_lse=True)
    scores = torch.einsum("qhd,khd->qhk", q, k) / math.sqrt(8)
    seen = torch.from_numpy(dense_mask(batch))[:, None]
    want = torch.logsumexp(scores.masked_fill(~seen, -torch.inf), -1)
    torch.testing.assert_close(lse, want)


def test_options_that_contradict_the_batch_are_refused():
    batch = collate([[1, 2, 3]])
    q, k, v = torch.randn(3, 3, 2, 8).unbind()
    with pytest.raises(PadlessError, match="whose own rule is"):
        varlen_attention(q, k, v, batch, causal=False)


def test_a_boundary_that_was_moved_since_the_batch_was_made_is_refused():
    batch = collate([[1, 2, 3], [4, 5]])
    batch.cu_seqlens.flags.writeable = True
    batch.cu_seqlens_padded.flags.writeable = True
    batch.cu_seqlens[1] = batch.cu_seqlens_padded[1] = 2
    q, k, v = torch.randn(3, 5, 2, 8).unbind()
    with pytest.raises(PadlessError, match="impossible batch"):
        varlen_attention(q, k, v, batch)
