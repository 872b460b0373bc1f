"""Kernels that need a GPU, called through stand-ins of their contracts: right numbers, right refusals."""

import sys

import pytest
import torch

from padless.attention import Segments
from padless.attention.backends import BACKENDS
from padless.attention.problem import Problem
from padless.attention.select import why_not
from padless.errors import PadlessError

NAMES = ["flash-attn-2", "flash-attn-3", "flash-attn-4", "torch-varlen", "transformer-engine", "xformers"]
RAGGED = Segments.of([0, 3, 3, 4, 11], [0, 5, 6, 7, 15])
SQUARE = Segments.of([0, 3, 4, 9])
EQUAL = Segments.of([0, 4, 8, 12])


@pytest.fixture(params=NAMES)
def backend(request, monkeypatch, stand_ins):
    for name, module in stand_ins.modules(request.param).items():
        monkeypatch.setitem(sys.modules, name, module)
    return BACKENDS[request.param]


def problem(segments, **options):
    make = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(n, h, 8, generator=make).bfloat16().requires_grad_()
        for n, h in ((segments.q_slots, 4), (segments.k_slots, 2), (segments.k_slots, 2))
    )
    return Problem(q=q, k=k, v=v, segments=segments, scale=0.3, **options)


def lacks(backend, p):
    """What the declaration refuses, apart from the device."""
    return [reason for reason in backend.capability.refusals(p) if "runs on" not in reason and "on cpu" not in reason]


@pytest.mark.parametrize("segments", [RAGGED, SQUARE, EQUAL], ids=["ragged", "square", "equal"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"right": 0},
        {"right": 0, "left": 2},
        {"right": 1, "left": 2},
        {"right": 0, "softcap": 2.0},
        {"right": 0, "sinks": torch.tensor([0.0, 1.0, -1.0, 2.0])},
        {"right": 0, "return_lse": True},
        {"deterministic": True},
    ],
    ids=str,
)
def test_what_a_backend_declares_it_computes(backend, segments, options):
    p = problem(segments, **options)
    if lacks(backend, p):
        return  # declared; the selector never sends it here
    want, want_lse = BACKENDS["reference"].run(p)
    got, got_lse = backend.run(p)
    torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)
    if p.return_lse:
        torch.testing.assert_close(got_lse.double(), want_lse, atol=1e-4, rtol=1e-4)
    up = torch.randn_like(want)
    for a, b in zip(*(torch.autograd.grad(x, (p.q, p.k, p.v), up) for x in (got, want)), strict=True):
        torch.testing.assert_close(a, b, atol=3e-2, rtol=3e-2)


def test_equal_segments_take_the_fixed_length_kernel(monkeypatch, stand_ins):
    for name, module in stand_ins.modules("flash-attn-2").items():
        monkeypatch.setitem(sys.modules, name, module)
    calls = []
    for name in ("flash_attn_func", "flash_attn_varlen_func"):
        kernel = getattr(sys.modules["flash_attn"], name)
        monkeypatch.setattr(sys.modules["flash_attn"], name, _counted(kernel, calls))
    BACKENDS["flash-attn-2"].run(problem(EQUAL))
    BACKENDS["flash-attn-2"].run(problem(SQUARE))
    assert calls == ["flash_attn_func", "flash_attn_varlen_func"]


def _counted(kernel, calls):
    import functools

    @functools.wraps(kernel)  # keeps the signature, which is checked
    def counted(*args, **kwargs):
        calls.append(kernel.__name__)
        return kernel(*args, **kwargs)

    return counted


def test_a_kernel_that_lost_an_argument_is_not_called(monkeypatch, stand_ins):
    module = stand_ins.flash_attn_2()

    def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=False):
        raise AssertionError("must not run")

    module.flash_attn_varlen_func = flash_attn_varlen_func
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    with pytest.raises(PadlessError, match=r"flash_attn_varlen_func \(2.8.3\) does not take dropout_p, softmax_scale"):
        BACKENDS["flash-attn-2"].run(problem(SQUARE))


def test_a_package_without_the_kernel_says_so(monkeypatch):
    import types

    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    with pytest.raises(PadlessError, match="has no flash_attn_varlen_func"):
        BACKENDS["flash-attn-2"].run(problem(SQUARE))


def test_torch_211_without_grouped_heads_gets_them_repeated(monkeypatch, stand_ins):
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", stand_ins.torch_varlen(grouped=False))
    p = problem(SQUARE, right=0)
    want, _ = BACKENDS["reference"].run(p)
    torch.testing.assert_close(BACKENDS["torch-varlen"].run(p)[0], want, atol=2e-2, rtol=2e-2)


def test_the_installed_torch_has_the_signature_we_call():
    from padless.attention.backends import torch_varlen
    from padless.attention.installed import function

    function("torch.nn.attention.varlen", "varlen_attn", torch_varlen._ARGUMENTS)


@pytest.mark.parametrize("name", NAMES)
def test_without_a_gpu_each_says_why_not(name):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    reasons = why_not(BACKENDS[name], problem(SQUARE))
    assert any("not installed" in reason or "no CUDA device" in reason for reason in reasons)
