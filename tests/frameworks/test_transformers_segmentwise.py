"""Layers run segment by segment, on their own: any lengths, any arguments, or a refusal."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.errors import PadlessError
from padless.frameworks.tiny_models import tiny_model
from padless.frameworks.transformers import PackedCollator, prepare
from padless.frameworks.transformers.boundaries import Boundaries, Call, enter
from padless.frameworks.transformers.segmentwise import isolate, run_segmentwise


def boundaries(*lengths: int) -> Boundaries:
    return Boundaries(offsets=(0, *itertools.accumulate(lengths)), device=torch.device("cpu"))


def running_sum(
    hidden: torch.Tensor, mask: torch.Tensor | None = None, gain: torch.Tensor | None = None
) -> torch.Tensor:
    """A layer with a state: what it gives for a token depends on all tokens before it in the call."""
    if mask is not None:
        return (mask.double() @ hidden[:, None]).squeeze(1)
    return hidden.cumsum(1) * (1.0 if gain is None else gain[..., None])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(sum))
def test_each_segment_is_what_it_is_alone_and_so_is_its_gradient(lengths):
    total = sum(lengths)
    hidden = torch.randn(1, total, 3, dtype=torch.float64, requires_grad=True)
    gain = torch.randn(1, total, dtype=torch.float64)
    mask = torch.ones(1, 1, total, total).tril()
    for extra in ({}, {"gain": gain}, {"mask": mask}):
        got = run_segmentwise(running_sum, boundaries(*lengths), (hidden,), extra)
        alone = [
            running_sum(part, **({"gain": g} if "gain" in extra else {}))
            for part, g in zip(hidden.split(lengths, 1), gain.split(lengths, 1), strict=True)
        ]
        expected = torch.cat(alone, 1)
        torch.testing.assert_close(got, expected)
        weight = torch.randn_like(expected)
        torch.testing.assert_close(
            torch.autograd.grad(got, hidden, weight)[0], torch.autograd.grad(expected, hidden, weight)[0]
        )


def test_segments_of_one_length_go_together_and_no_gradient_is_full_size_per_segment():
    calls = []

    def layer(hidden: torch.Tensor) -> torch.Tensor:
        calls.append(tuple(hidden.shape))
        return hidden

    hidden = torch.randn(2, 12, 3, requires_grad=True)
    out = run_segmentwise(layer, boundaries(4, 2, 2, 4, 8, 4), (hidden,), {})
    assert calls == [(2, 2, 3), (3, 4, 3), (1, 8, 3)]
    assert torch.equal(out, hidden)


def test_only_the_first_of_several_results_is_kept():
    out = run_segmentwise(lambda hidden: (hidden, hidden.sum()), boundaries(2, 3), (torch.ones(1, 5, 1),), {})
    assert torch.equal(out[0], torch.ones(1, 5, 1))
    assert out[1] is None


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"mask": torch.zeros(7)}, "mask of shape \\(7,\\), which is neither per token nor a mask"),
        ({"mask": object()}, "mask=object in a packed call"),
    ],
)
def test_arguments_of_unknown_meaning_are_refused(extra, message):
    with pytest.raises(PadlessError, match=message):
        run_segmentwise(running_sum, boundaries(2, 3), (torch.ones(1, 5, 1),), extra)


class Listening(torch.nn.Module):
    """Stands in for a layer whose fused kernel takes the boundaries; the contract is that of Transformers 5.24."""

    def forward(self, hidden: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:
        seq_idx, offsets = kwargs["seq_idx"], kwargs["cu_seq_lens_q"]
        assert seq_idx.dtype == offsets.dtype == torch.int32
        assert seq_idx.shape == hidden.shape[:2]
        starts = hidden.cumsum(1)[:, (offsets[:-1].long() - 1).clamp(min=0)] * (offsets[:-1] > 0)[None, :, None]
        return hidden.cumsum(1) - starts[:, seq_idx[0].long()]


def test_fused_layers_are_told_the_boundaries_in_both_ways():
    layer = Listening()
    isolate(layer, "fused")
    hidden = torch.randn(1, 9, 2, dtype=torch.float64)
    enter(Call(boundaries=boundaries(4, 2, 3)))
    try:
        got = layer(hidden)
    finally:
        enter(None)
    torch.testing.assert_close(got, torch.cat([part.cumsum(1) for part in hidden.split((4, 2, 3), 1)], 1))
    with pytest.raises(PadlessError, match="outside of its prepared model's forward"):
        layer(hidden)
    with pytest.raises(PadlessError, match="there are segmentwise, fused"):
        isolate(layer, "quickly")


MODELS = {name: tiny_model(name) for name in ("mistral", "llama4_text", "modernbert", "bloom", "bamba", "lfm2")}
for _model in MODELS.values():
    prepare(_model)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=8, deadline=None)
@given(lengths=st.lists(st.integers(1, 14), min_size=1, max_size=5))
def test_models_give_any_lengths_what_they_get_alone(name, lengths):
    model = MODELS[name]
    texts = [[3 + (7 * i + 5 * k) % 90 for k in range(n)] for i, n in enumerate(lengths)]
    call = PackedCollator()(texts)
    del call["labels"]
    with torch.no_grad():
        packed = model(**call).logits[0]
        alone = torch.cat([model(input_ids=torch.tensor([text])).logits[0] for text in texts])
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-6 if name == "llama4_text" else 1e-10)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo looks at intermediate tensors
def test_compiled_models_do_not_compile_anew_for_other_lengths():
    model = tiny_model("bamba")
    prepare(model)
    compiled = torch.compile(model, backend="eager")
    collate = PackedCollator(static=(24, 8))
    batches = [collate([list(range(5, 5 + n)) for n in lengths]) for lengths in ((5, 9, 2), (8, 8), (1, 2, 13))]
    assert torch.equal(compiled(**batches[0]).logits, model(**batches[0]).logits)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for batch in batches[1:]:
            assert torch.equal(compiled(**batch).logits, model(**batch).logits)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss", "bert", "bamba", "qwen3_next"])
def test_the_probe_holds_on_a_gpu_in_bfloat16(name):
    model = tiny_model(name, dtype=torch.bfloat16).cuda()
    assert prepare(model).probe is not None
