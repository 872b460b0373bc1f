"""Every backend that can run here equals the naive float64 reference: outputs, log-sum-exp and gradients."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.attention import Segments, groups, pieces
from padless.attention.backends import BACKENDS
from padless.attention.problem import Problem, visible
from padless.attention.select import run, why_not

# Relative to the largest value; bf16 and fp16 inputs are exact in the reference, so this is the kernel's own rounding.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
lengths = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=6)
limit = st.one_of(st.none(), st.integers(0, 6))


@st.composite
def geometries(draw) -> Segments:
    q = np.array(draw(lengths))
    k = q if draw(st.booleans()) else np.array([draw(st.integers(0, 40)) for _ in q])
    gaps = np.array([draw(st.integers(0, 2)) for _ in q])

    def offsets(n):
        return np.concatenate([[0], np.cumsum(n)])

    slots, slots_k = int((q + gaps).sum()) + draw(st.integers(0, 2)), int((k + gaps).sum())
    return Segments.of(
        offsets(q), offsets(k), padded=offsets(q + gaps), padded_k=offsets(k + gaps), slots=slots, slots_k=slots_k
    )


@st.composite
def problems(draw, dtype: torch.dtype) -> Problem:
    segments = draw(geometries())
    kv_heads, group = draw(st.sampled_from([(1, 1), (2, 1), (2, 3), (1, 4)]))
    size, value_size = draw(st.sampled_from([(8, 8), (16, 8), (8, 16)]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def tensor(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    return Problem(
        q=tensor(segments.q_slots, kv_heads * group, size),
        k=tensor(segments.k_slots, kv_heads, size),
        v=tensor(segments.k_slots, kv_heads, value_size),
        segments=segments,
        left=draw(limit),
        right=draw(st.one_of(st.just(0), limit)),
        scale=draw(st.sampled_from([0.3, 1.0])),
        softcap=draw(st.sampled_from([0.0, 0.0, 2.0])),
        sinks=tensor(kv_heads * group) if draw(st.booleans()) else None,
        return_lse=True,
    )


def wanted(p: Problem, name: str) -> Problem | None:
    """`p` without what a backend lacks but does not matter here; None when it cannot do the rest."""
    can = BACKENDS[name].capability
    p = dataclasses.replace(
        p, return_lse=can.lse, softcap=p.softcap * can.softcap, sinks=p.sinks if can.sinks else None
    )
    return None if why_not(BACKENDS[name], p) else p


def gradients(p: Problem, out: torch.Tensor) -> list[torch.Tensor]:
    inputs = [p.q, p.k, p.v, *([] if p.sinks is None else [p.sinks])]
    if not out.requires_grad:  # the reference, when nobody sees anybody
        return [torch.zeros_like(x) for x in inputs]
    up = torch.randn(out.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(out)
    found = torch.autograd.grad(out, inputs, up, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


def assert_close(got: torch.Tensor, want: torch.Tensor, tolerance: float, what: str) -> None:
    assert got.shape == want.shape
    got, want = got.detach().double(), want.detach().double()
    finite = torch.isfinite(want)
    assert torch.equal(torch.isfinite(got), finite), what
    error = (got - want).masked_fill(~finite, 0.0).abs()
    largest = want.masked_fill(~finite, 0.0).abs()
    if error.numel():
        assert float(error.max()) <= tolerance * max(1.0, float(largest.max())), what


def compare(p: Problem, name: str) -> None:
    want, want_lse = run(p, "reference")
    got, got_lse = run(p, name)
    tolerance = TOLERANCE[p.q.dtype]
    assert_close(got, want, tolerance, "output")
    if p.return_lse:
        assert_close(got_lse, want_lse, max(tolerance, 1e-5) if got_lse.dtype == torch.float32 else tolerance, "lse")
    for name_of, a, b in zip(("q", "k", "v", "sinks"), gradients(p, got), gradients(p, want), strict=False):
        assert_close(a, b, tolerance, f"gradient of {name_of}")


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_segmented_equals_the_reference(dtype, data):
    p = wanted(data.draw(problems(dtype)), "segmented")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "BAND", data.draw(st.sampled_from([3, 256])))
        patch.setattr(groups, "PORTION", data.draw(st.sampled_from([8, 60, 4096])))
        compare(p, "segmented")


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_dense_equals_the_reference(dtype, data):
    p = wanted(data.draw(problems(dtype)), "dense")
    compare(p, "dense")


@given(data=st.data())
@settings(max_examples=8, deadline=None)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.filterwarnings("ignore:return_lse is deprecated:FutureWarning")
def test_flex_equals_the_reference_without_gradients(data):
    p = data.draw(problems(torch.float32))
    if not p.segments.q_lengths.any() or not p.segments.k_lengths.any():
        return
    with torch.no_grad():
        p = wanted(p, "flex")
        want, want_lse = run(p, "reference")
        got, got_lse = run(p, "flex")
    assert_close(got, want, 2e-5, "output")
    assert_close(got_lse, want_lse, 2e-5, "lse")


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "reference"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_on_a_gpu_every_installed_kernel_equals_the_reference(name, dtype, data):
    p = data.draw(problems(dtype))
    moved = {x: getattr(p, x).detach().cuda().requires_grad_() for x in ("q", "k", "v")}
    sinks = None if p.sinks is None else p.sinks.detach().cuda().requires_grad_()
    p = wanted(dataclasses.replace(p, **moved, sinks=sinks), name)
    if p is not None:
        compare(p, name)


@given(
    q=st.integers(0, 9),
    k=st.integers(0, 9),
    left=limit,
    right=limit,
    band=st.integers(1, 4),
    longest=st.sampled_from([None, 2]),
)
@settings(max_examples=300, deadline=None)
def test_pieces_tile_exactly_what_is_seen(q, k, left, right, band, longest):
    seen = np.zeros((q, k), int)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "BAND", band)
        for piece in pieces.cut(Segments.of([0, q], [0, k]), left, right, longest=longest):
            inside = pieces.band(*piece.shape)
            assert inside.any(axis=1).all(), "a query that sees nothing makes a kernel divide by zero"
            seen[piece.q : piece.q + piece.nq, piece.k : piece.k + piece.nk] += inside
    assert np.array_equal(seen, visible(q, k, left, right))
