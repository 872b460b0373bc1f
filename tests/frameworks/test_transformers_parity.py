"""For every architecture: packed logits, losses and gradients equal those of the samples alone, or packing is refused.

"Alone" is the model as Transformers ships it, before `prepare`, one sample per call: nothing of padless takes part.
"""

import copy
import itertools
from typing import Any

import pytest
import torch

from padless.errors import PadlessError
from padless.frameworks.tiny_models import ARCHITECTURES, VOCABULARY, tiny_model
from padless.frameworks.transformers import PackedCollator, prepare

LENGTHS = (13, 1, 16, 9)  # longer and shorter than windows (6) and chunks (5); a segment of one token
ROWS = ((8, 12), (20,), (1, 1, 18))  # three rows of 20 tokens

EXACT = 1e-10
# Parts that Transformers computes in float32 whatever the dtype, so that the number of tokens in a call moves the
# rounding. What packing does is not among them: it is below 1e-14 wherever these parts are absent.
SOFTMAX = "its eager attention, which the samples alone must take, has a float32 softmax"
ROUTER = "its router multiplies in float32"
ROTATION = "its rotary positions multiply in complex float32"
NORM = "its norms sum the gradients of their weights over tokens in float32"
INEXACT = {
    "gemma2": (1e-6, SOFTMAX),
    "llama4_text": (1e-7, ROTATION),
    "deepseek_v2": (1e-6, f"{ROUTER}, and {ROTATION}"),
    "deepseek_v3": (1e-6, ROUTER),
    "gemma3_text": (1e-7, NORM),
    "cohere2": (1e-7, NORM),
    "nemotron_h": (1e-7, NORM),
    "qwen3_next": (1e-7, NORM),
    "qwen3_5_text": (1e-7, NORM),
    "qwen3_5": (1e-7, NORM),
    "recurrent_gemma": (1e-7, NORM),
}
REFUSED = {
    "t5": "cross attention",
    "bart": "cross attention",
    "deepseek_v4": "layers of type heavily_compressed_attention",
    "deberta-v2": r"leaks.*DisentangledSelfAttention",
    "fnet": r"leaks.*FNetBasicFourierTransform",
}

PACKABLE = [name for name in ARCHITECTURES if name not in REFUSED]


def samples(lengths: tuple[int, ...]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(3, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def sum_loss(logits: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """Next-token loss in the logits' own precision; Transformers' own loss computes in float32."""
    return torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(tokens)[1:], reduction="sum")


def alone(model: Any, tokens: list[int]) -> torch.Tensor:
    return model(input_ids=torch.tensor([tokens])).logits[0]


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(((a - b).norm() / b.norm()).detach())


def shipped_and_prepared(name: str) -> tuple[Any, Any]:
    shipped = tiny_model(name)
    shipped.config.use_cache = False
    model = copy.deepcopy(shipped)
    prepare(model)
    return shipped, model


@pytest.mark.parametrize("name", PACKABLE)
def test_one_row_gives_the_logits_losses_and_gradients_of_the_samples_alone(name):
    shipped, model = shipped_and_prepared(name)
    tolerance, _ = INEXACT.get(name, (EXACT, ""))
    texts = samples(LENGTHS)
    batch = PackedCollator()(texts)
    labels = batch.pop("labels")

    packed = model(**batch).logits[0].split(LENGTHS)
    singles = [alone(shipped, text) for text in texts]
    assert relative(torch.cat(packed), torch.cat(singles)) < tolerance

    packed_loss = sum(sum_loss(logits, text) for logits, text in zip(packed, texts, strict=True))
    single_loss = sum(sum_loss(logits, text) for logits, text in zip(singles, texts, strict=True))
    assert float(packed_loss.detach()) == pytest.approx(float(single_loss.detach()), rel=tolerance)

    packed_loss.backward()
    single_loss.backward()
    expected = {key: value.grad for key, value in shipped.named_parameters()}
    got = {key: value.grad for key, value in model.named_parameters()}
    assert [key for key in got if got[key] is not None] == [key for key in expected if expected[key] is not None]
    pairs = [(got[key], expected[key]) for key in got if got[key] is not None]
    difference = sum(float((a - b).square().sum()) for a, b in pairs) ** 0.5
    assert difference < tolerance * sum(float(b.square().sum()) for _, b in pairs) ** 0.5

    if ARCHITECTURES[name].auto == "AutoModelForCausalLM":
        theirs = model(**batch, labels=labels, num_items_in_batch=sum(LENGTHS) - len(LENGTHS)).loss
        mean = single_loss.detach() / (sum(LENGTHS) - len(LENGTHS))
        assert float(theirs.detach()) == pytest.approx(float(mean), rel=1e-6)


@pytest.mark.parametrize("name", PACKABLE)
def test_several_rows_give_the_logits_of_the_samples_alone(name):
    shipped, model = shipped_and_prepared(name)
    tolerance, _ = INEXACT.get(name, (EXACT, ""))
    lengths = tuple(itertools.chain(*ROWS))
    texts = samples(lengths)
    offsets = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    tokens = torch.tensor(list(itertools.chain(*texts))).view(len(ROWS), -1)
    with torch.no_grad():
        packed = model(input_ids=tokens, cu_seq_lens_q=offsets, cu_seq_lens_k=offsets).logits.flatten(0, 1)
        singles = torch.cat([alone(shipped, text) for text in texts])
    assert relative(packed, singles) < tolerance


@pytest.mark.parametrize("name", PACKABLE)
def test_changing_one_segment_moves_no_other_by_a_single_bit(name):
    model = tiny_model(name)
    report = prepare(model)
    assert report.probe is not None
    if not any("expert" in key for key, _ in model.named_modules()):
        assert report.probe.moved == 0.0
    assert report.probe.moved < 1e-14


@pytest.mark.parametrize(("name", "reason"), REFUSED.items())
def test_what_cannot_be_packed_is_refused_by_name(name, reason):
    model = tiny_model(name)
    with pytest.raises(PadlessError, match=reason):
        prepare(model)


def test_every_exception_is_needed():
    """An entry of INEXACT that is no longer needed must go."""
    for name in ("deepseek_v3", "gemma2"):
        shipped, model = shipped_and_prepared(name)
        texts = samples(LENGTHS)
        batch = PackedCollator()(texts)
        with torch.no_grad():
            packed = model(**{key: value for key, value in batch.items() if key != "labels"}).logits[0]
            singles = torch.cat([alone(shipped, text) for text in texts])
        assert relative(packed, singles) > EXACT
