"""What the real libraries take True, 0 and causal to mean: each claim of docs/masks.md, asked of the library itself.

The probe is an attention whose values are the identity: output row q then holds the weight of every key for query q,
and a key is seen iff its weight is not 0.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from padless.masks import (
    additive_mask,
    dense_mask,
    flex_block_mask,
    flex_mask_mod,
    inverted_mask,
    jax_segment_ids,
    rectangular_mask,
    varlen_calls,
)
from padless.masks.flex import pairs_per_block
from padless.rows import Batch, Rule, collate

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def some(all_rules: Any) -> list[Any]:
    return all_rules[:120]


def weights(q: torch.Tensor, k: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """Who got weight, by PyTorch's own attention; bool[Tq, Tk]."""
    values = torch.eye(k.shape[-2], dtype=q.dtype).expand(*k.shape[:-2], -1, -1)
    return scaled_dot_product_attention(q, k, values, **kwargs)[0, 0] != 0


def tensors(slots: int, count: int = 2, size: int = 8) -> list[torch.Tensor]:
    return list(torch.randn(count, 1, 1, slots, size, generator=torch.Generator().manual_seed(0)))


def test_sdpa_attends_where_a_boolean_mask_is_true(some: list[Any]) -> None:
    for batch, mask in some:
        seen = weights(*tensors(batch.num_slots), attn_mask=dense_mask(batch.torch()))
        assert (seen.numpy() == mask).all()


def test_sdpa_adds_a_float_mask_and_padding_is_never_nan(some: list[Any]) -> None:
    for batch, mask in some:
        scores = torch.randn(batch.num_slots, batch.num_slots)
        added = torch.softmax(scores + additive_mask(batch.torch(), torch.float32), -1)
        assert not added.isnan().any()
        real = batch.segment_ids > 0
        seen = weights(*tensors(batch.num_slots), attn_mask=additive_mask(batch.torch())).numpy()
        assert (seen[real] == mask[real]).all()
        assert (np.nonzero(seen[~real])[1] == np.flatnonzero(~real)).all(), "padding sees itself alone"


def test_multihead_attention_masks_where_a_boolean_mask_is_true(some: list[Any]) -> None:
    attention = torch.nn.MultiheadAttention(8, 1, batch_first=True)
    for batch, mask in some[:40]:
        x = torch.randn(1, batch.num_slots, 8)
        _, seen = attention(x, x, x, attn_mask=inverted_mask(batch.torch()))
        real = batch.segment_ids > 0
        assert ((seen[0] != 0).numpy()[real] == mask[real]).all()


def test_sdpa_is_causal_from_the_upper_left_and_calls_from_the_lower_right() -> None:
    """The same word, two masks: this is why a call says how it is aligned."""
    from torch.nn.attention.bias import causal_lower_right

    q, k = torch.randn(1, 1, 2, 8), torch.randn(1, 1, 5, 8)
    upper_left = weights(q, k, is_causal=True)
    assert upper_left.int().tolist() == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]
    lower_right = causal_lower_right(2, 5)._materialize()  # pyright: ignore[reportAttributeAccessIssue]
    sample = {"input_ids": [7] * 5, "prefix_length": 3}
    batch = collate([sample], rule=Rule(kind="prefix-lm"))
    causal = varlen_calls(batch)[1]
    assert np.diff(causal.cu_seqlens_q) == 2
    assert np.diff(causal.cu_seqlens_k) == 5
    assert (lower_right.numpy() == dense_mask(batch)[3:]).all()


def test_flex_attention_sees_the_rule(some: list[Any]) -> None:
    for batch, mask in some:
        made = create_mask(flex_mask_mod(batch), 1, 1, batch.num_slots, batch.num_slots, device="cpu")
        assert (made[0, 0].numpy() == mask).all()


def test_flex_block_masks_are_those_that_flex_attention_makes_itself(some: list[Any]) -> None:
    """Blocks to compute, and blocks that need no mask: counted from slices here, from all pairs there."""
    for batch, _ in some:
        slots = batch.num_slots
        made = flex_block_mask(batch, block_size=4)
        reference = create_block_mask(flex_mask_mod(batch), None, None, slots, slots, device="cpu", BLOCK_SIZE=4)
        assert made.shape == reference.shape
        assert (made.to_dense() == reference.to_dense()).all()
        for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
            assert torch.equal(getattr(made, name), getattr(reference, name)), name
        for numbers, indices in (("kv_num_blocks", "kv_indices"), ("full_kv_num_blocks", "full_kv_indices")):
            for line, n in enumerate(getattr(made, numbers)[0, 0].tolist()):
                mine, theirs = getattr(made, indices)[0, 0, line, :n], getattr(reference, indices)[0, 0, line, :n]
                assert torch.equal(mine, theirs), indices


def test_pairs_per_block_are_counted_exactly(all_rules: list[Any]) -> None:
    for batch, mask in all_rules[:1500]:
        for size in (3, 8):
            padded = np.zeros((-(-batch.num_slots // size) * size,) * 2, dtype=int)
            padded[: len(mask), : len(mask)] = mask
            blocks = padded.reshape(len(padded) // size, size, -1, size).sum(axis=(1, 3))
            assert (pairs_per_block(batch, size) == blocks).all()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_computes_what_a_dense_mask_does() -> None:
    rule = Rule(kind="prefix-lm", window=(5, None))
    rows = [{"input_ids": [7] * n, "prefix_length": p} for n, p in ((9, 4), (5, 0), (17, 7), (1, 0))]
    batch = collate(rows, rule=rule, align=4, capacity=48)
    q, k, v = torch.randn(3, 1, 2, 48, 16, dtype=torch.float64).unbind()
    flex = flex_attention(q, k, v, block_mask=flex_block_mask(batch, block_size=16))
    dense = scaled_dot_product_attention(q, k, v, attn_mask=dense_mask(batch.torch()))
    real = torch.from_numpy(batch.segment_ids > 0)
    torch.testing.assert_close(flex[:, :, real], dense[:, :, real], rtol=1e-10, atol=1e-12)
    assert (flex[:, :, ~real] == 0).all()


def test_a_rectangular_mask_is_the_diagonal_of_the_dense_one() -> None:
    rows = [[[7] * 5, [7] * 2], [[7] * 3]]
    batch = collate(rows, capacity=9)
    blocks = rectangular_mask(batch)
    assert blocks.shape == (2, 1, 9, 9)
    dense = dense_mask(batch)
    assert (blocks[:, 0] == np.stack([dense[:9, :9], dense[9:, 9:]])).all()
    assert (rectangular_mask(batch.torch()).numpy() == blocks).all()


def test_jax_attends_where_a_mask_is_true_and_ids_are_equal() -> None:
    """Dense masks and segment ids, both through `jax.nn.dot_product_attention`."""
    import jax

    batch = collate([[[7] * 5, [7] * 2, [7]], [[7] * 3, [7] * 4]], capacity=9)
    ids = jax_segment_ids(batch).segment_ids
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 2, 9, 1, 9)).astype(np.float32)
    identity = np.broadcast_to(np.eye(9, dtype=np.float32)[None, :, None], (2, 9, 1, 9))
    equal = (ids[:, :, None] == ids[:, None, :])[:, None]
    by_ids = jax.nn.dot_product_attention(q, k, identity, mask=equal, is_causal=True)
    seen = np.asarray(by_ids)[:, :, 0] != 0
    real = ids > 0
    assert (seen[real] == rectangular_mask(batch)[:, 0][real]).all()
    by_mask = jax.nn.dot_product_attention(q, k, identity, mask=rectangular_mask(batch))
    assert ((np.asarray(by_mask)[:, :, 0] != 0)[real] == rectangular_mask(batch)[:, 0][real]).all()


def test_calls_compute_what_a_dense_mask_does_with_gradients() -> None:
    """The calls of pi0's rule, each run as plain attention per sequence, against one dense mask, in float64."""
    samples = [{"input_ids": [7] * n, "blocks": np.repeat([0, 1, 2], (n - 6, 1, 5))} for n in (11, 19, 8)]
    batch = collate(samples, rule=Rule(kind="block-causal"), align=4)
    q, k, v = (x.requires_grad_() for x in torch.randn(3, batch.num_slots, 8, dtype=torch.float64).unbind())
    out = run(batch, q, k, v)
    dense = scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=dense_mask(batch.torch()))[0]
    real = torch.from_numpy(batch.segment_ids > 0)
    weight = torch.randn_like(dense[real])
    torch.testing.assert_close(out[real], dense[real], rtol=1e-10, atol=1e-12)
    ours = torch.autograd.grad((out[real] * weight).sum(), (q, k, v))
    theirs = torch.autograd.grad((dense[real] * weight).sum(), (q, k, v))
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-10, atol=1e-12)


def run(batch: Batch, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(q)
    for call in varlen_calls(batch.torch()):
        at = call.q_index
        parts = zip(
            q[at].split(call.cu_seqlens_q.diff().tolist()),
            k[slice(None) if call.k_index is None else call.k_index].split(call.cu_seqlens_k.diff().tolist()),
            v[slice(None) if call.k_index is None else call.k_index].split(call.cu_seqlens_k.diff().tolist()),
            strict=True,
        )
        assert not call.causal or call.max_seqlen_q == 1
        found = [scaled_dot_product_attention(a[None], b[None], c[None])[0] for a, b, c in parts]
        out = out.index_copy(0, at, torch.cat(found))
    return out
