"""Empty segments, one token, padding, bottom-right alignment, options, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from padless import Rule, collate
from padless.attention import Segments, varlen_attention
from padless.errors import PadlessError

BACKENDS = ["segmented", "dense", "reference"]
pytestmark = pytest.mark.filterwarnings("error")


def tensors(tokens, tokens_k=None, *, heads=4, kv_heads=2, size=8, dtype=torch.float64):
    make = torch.Generator().manual_seed(0)
    shapes = (tokens, heads), (tokens_k or tokens, kv_heads), (tokens_k or tokens, kv_heads)
    return [torch.randn(n, h, size, generator=make, dtype=torch.float64).to(dtype).requires_grad_() for n, h in shapes]


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_and_one_token_segments(backend):
    q, k, v = tensors(4)
    out = varlen_attention(q, k, v, cu_seqlens=[0, 0, 1, 1, 4, 4], backend=backend)
    torch.testing.assert_close(out[0], v[0].repeat_interleave(2, 0))
    alone = varlen_attention(q[1:], k[1:], v[1:], cu_seqlens=[0, 3], backend=backend)
    torch.testing.assert_close(out[1:], alone)


@pytest.mark.parametrize("backend", ["segmented", "dense"])
def test_no_tokens_at_all(backend):
    q, k, v = (torch.zeros(0, 2, 8, requires_grad=True) for _ in range(3))
    out = varlen_attention(q, k, v, cu_seqlens=[0, 0], backend=backend)
    out.sum().backward()
    assert out.shape == (0, 2, 8)
    assert q.grad.shape == (0, 2, 8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_is_zero_and_gets_zero_gradients(backend):
    segments = Segments.of([0, 3, 5], padded=[0, 4, 8], slots=10)
    q, k, v = tensors(10)
    out, lse = varlen_attention(q, k, v, segments, return_lse=True, backend=backend if backend != "dense" else "auto")
    up = torch.ones_like(out)
    grads = torch.autograd.grad(out, (q, k, v), up)
    padding = [3, 6, 7, 8, 9]
    for tensor in (out, *grads):
        assert (tensor[padding] == 0).all()
        assert torch.isfinite(tensor).all()
    assert torch.isneginf(lse[padding]).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_padding_holds_reaches_nothing(backend):
    segments = Segments.of([0, 3, 5], padded=[0, 4, 8], slots=10)
    q, k, v = (x.detach() for x in tensors(10))
    want = varlen_attention(q, k, v, segments, backend=backend)
    for x in (q, k, v):
        x[[3, 6, 7, 8, 9]] = torch.nan
        x.requires_grad_()
    out = varlen_attention(q, k, v, segments, backend=backend)
    torch.testing.assert_close(out, want, atol=0, rtol=0)
    for grad in torch.autograd.grad(out, (q, k, v), torch.ones_like(out)):
        assert torch.isfinite(grad).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_decoding_is_aligned_to_the_bottom_right(backend):
    """The last token of each segment as the only query equals the last row of the whole."""
    q, k, v = tensors(9)
    whole = varlen_attention(q, k, v, cu_seqlens=[0, 4, 9], backend=backend)
    last = varlen_attention(q[[3, 8]], k, v, cu_seqlens=[0, 1, 2], cu_seqlens_k=[0, 4, 9], backend=backend)
    torch.testing.assert_close(last, whole[[3, 8]])


def test_packed_equals_each_segment_alone_bit_for_bit_where_the_kernel_is_the_same():
    q, k, v = tensors(300, dtype=torch.float32)
    packed = varlen_attention(q, k, v, cu_seqlens=[0, 100, 200, 300])
    for a in (0, 100, 200):
        alone = varlen_attention(q[a : a + 100], k[a : a + 100], v[a : a + 100], cu_seqlens=[0, 100])
        assert torch.equal(packed[a : a + 100], alone)


def test_strided_inputs_are_taken_as_they_are():
    """Slices of one projection, as models make them, need no copy."""
    qkv = torch.randn(7, 3, 4, 8, dtype=torch.float64, requires_grad=True)
    out = varlen_attention(*qkv.unbind(1), cu_seqlens=[0, 3, 7])
    want = varlen_attention(*(x.contiguous() for x in qkv.unbind(1)), cu_seqlens=[0, 3, 7], backend="reference")
    torch.testing.assert_close(out, want)
    out.transpose(0, 1).sum().backward()  # an expanded, non-contiguous gradient


@pytest.mark.parametrize("backend", ["dense", "reference"])
def test_dropout_drops_and_keeps_the_mean(backend):
    torch.manual_seed(0)
    q, k, v = (x.detach() for x in tensors(64, heads=2))
    v.fill_(1.0)
    out = varlen_attention(q, k, v, cu_seqlens=[0, 64], causal=False, dropout_p=0.5, backend=backend)
    assert out.std() > 0
    assert abs(float(out.mean()) - 1) < 0.1


def test_dropout_goes_to_a_backend_that_has_it():
    from padless.attention import choose

    q, k, v = tensors(6)
    choice = choose(q, k, v, cu_seqlens=[0, 2, 6], dropout_p=0.1)
    assert choice.backend in ("dense", "reference")
    assert "dropout" in choice.refusals["segmented"]


def test_gradients_are_the_same_bits_in_every_run():
    q, k, v = tensors(500, dtype=torch.float32)
    cu = [0, 3, 20, 21, 260, 500]
    runs = [
        torch.autograd.grad(varlen_attention(q, k, v, cu_seqlens=cu, deterministic=True).sum(), (q, k, v))
        for _ in range(3)
    ]
    assert all(torch.equal(a, b) for other in runs[1:] for a, b in zip(runs[0], other, strict=True))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"cu_seqlens": [0, 5, 3, 9]}, "falls from 5 to 3 at index 2"),
        ({"cu_seqlens": np.array([0, 5, 3, 9], np.uint32)}, "falls from 5 to 3 at index 2"),
        ({"cu_seqlens": [1, 9]}, "starts with 1"),
        ({"cu_seqlens": [0, 3, 8]}, "describe 8 slots but q has 9"),
        ({"cu_seqlens": [0, 3, 12]}, "describe 12 slots but q has 9"),
        ({"cu_seqlens": [0.0, 9.0]}, "must hold integers"),
        ({"cu_seqlens": [[0, 9]]}, "one dimension"),
        ({"cu_seqlens": None}, "give the boundaries once"),
        ({"cu_seqlens_k": [0, 4, 9, 9]}, "2 query segments but 3 key segments"),
        ({"window": 4}, r"give \(left, right\)"),
        ({"window": (-1, None)}, "window left is -1"),
        ({"dropout_p": 1.0}, "dropout_p is 1.0"),
        ({"softcap": -1.0}, "softcap is -1.0"),
        ({"softcap": math.nan}, "softcap is nan"),
        ({"scale": 0.0}, "scale is 0.0"),
        ({"scale": -1.0}, "scale is -1.0"),
        ({"sinks": torch.zeros(3)}, r"one per query head is \[4\]"),
        ({"backend": "fast"}, "there are auto, flash-attn-4"),
        ({"batch": "rows", "cu_seqlens": None}, "cannot read boundaries from a str"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_use_is_refused(change, says):
    q, k, v = tensors(9)
    arguments = {"cu_seqlens": [0, 3, 9]} | change
    with pytest.raises(PadlessError, match=says):
        varlen_attention(q, k, v, **arguments)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda q, k, v: (q[None], k, v), "flatten a"),
        (lambda q, k, v: (q.int(), k, v), "q is torch.int32"),
        (lambda q, k, v: (q, k.float(), v), "but k is torch.float32"),
        (lambda q, k, v: (q, k, v[:8]), "tokens and heads must agree"),
        (lambda q, k, v: (q[..., :4], k, v), "q has head size 4 and k 8"),
        (lambda q, k, v: (q[..., :0], k[..., :0], v), "no size may be 0"),
        (lambda q, k, v: (q[:, :3], k, v), "must be a multiple of key heads"),
        (lambda q, k, v: (q.mT.contiguous().mT, k, v), "must be contiguous"),
        (lambda q, k, v: (q, k[:8], v[:8]), "k has 8"),
    ],
    ids=range(9),
)
def test_tensors_that_do_not_fit_are_refused(spoil, says):
    with pytest.raises(PadlessError, match=says):
        varlen_attention(*spoil(*tensors(9)), cu_seqlens=[0, 3, 9])


def test_segments_cannot_be_changed_behind_a_kernel():
    segments = Segments.of([0, 3, 9])
    with pytest.raises(ValueError, match="read-only"):
        segments.q_lengths[0] = 4


def test_negative_lengths_are_refused():
    starts, lengths = np.array([0, 5, 3]), np.array([5, -2, 6])
    with pytest.raises(PadlessError, match="segment 1 has length -2"):
        Segments(q_starts=starts, q_lengths=lengths, k_starts=starts, k_lengths=lengths, q_slots=9, k_slots=9)


@pytest.mark.parametrize("backend", ["segmented", "reference"])
def test_no_gradient_flows_through_the_lse(backend):
    _, lse = varlen_attention(*tensors(9), cu_seqlens=[0, 3, 9], return_lse=True, backend=backend)
    assert not lse.requires_grad


@pytest.mark.parametrize(("backend", "softcap"), [*((name, 0.0) for name in BACKENDS), ("segmented", 3.0)])
def test_autocast_casts_as_pytorchs_own_attention_does(backend, softcap):
    """Rotary embeddings leave float32 queries and keys beside half-precision values."""
    q, k, v = tensors(9, dtype=torch.float32)
    options: dict[str, Any] = {"cu_seqlens": [0, 3, 9], "softcap": softcap, "backend": backend}
    halves = [x.detach().bfloat16().requires_grad_() for x in (q, k, v)]
    want = varlen_attention(*halves, **options)
    with torch.autocast("cpu", torch.bfloat16):
        got = varlen_attention(q, k, v.bfloat16(), **options)
        grads = torch.autograd.grad(got, (q, k, v), torch.ones_like(got))
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, want)
    for found, half in zip(grads, torch.autograd.grad(want, halves, torch.ones_like(want)), strict=True):
        assert torch.equal(found, half.float())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rule", [Rule(), Rule(kind="prefix-lm")])
def test_what_inference_left_behind_serves_training(backend, rule):
    row = [{"input_ids": [1, 2, 3, 4], "prefix_length": 2}, {"input_ids": [5, 6], "prefix_length": 1}]
    batch = collate(row if rule.has_ranks else [[1, 2, 3, 4], [5, 6]], rule=rule, align=8)
    q, k, v = tensors(batch.num_slots)
    with torch.inference_mode():
        want = varlen_attention(q, k, v, batch, backend=backend)
    out = varlen_attention(q, k, v, batch, backend=backend)
    out.sum().backward()
    torch.testing.assert_close(out.detach(), want.clone())


def test_overlapping_padded_offsets_are_refused():
    with pytest.raises(PadlessError, match="tokens of one sample would be read as another's"):
        Segments.of([0, 5, 9], padded=[0, 4, 9])
