"""Prepacked prefill equals running each prompt alone: last logits, caches, and everything generated after."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.errors import PadlessError
from padless.frameworks.tiny_models import tiny_model
from padless.frameworks.transformers import prefill, prepare

PROMPTS = [list(range(5, 5 + n)) for n in (4, 1, 17, 9, 2)]
NAMES = ["llama", "mistral", "gemma3_text", "gpt2", "gpt_oss", "deepseek_v3", "cohere2", "opt"]


def shipped_and_prepared(name: str):
    shipped = tiny_model(name)
    model = copy.deepcopy(shipped)
    prepare(model)
    return shipped, model


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("capacity", [None, 18])
def test_logits_caches_and_generation_equal_each_prompt_alone(name, capacity):
    shipped, model = shipped_and_prepared(name)
    with torch.no_grad():
        done = prefill(model, PROMPTS, capacity=capacity)
        for prompt, got in zip(PROMPTS, done, strict=True):
            ids = torch.tensor([prompt])
            alone = shipped(input_ids=ids, use_cache=True)
            torch.testing.assert_close(got.logits, alone.logits[0, -1], rtol=0, atol=1e-6)
            assert got.cache.get_seq_length() == len(prompt)
            for mine, theirs in zip(got.cache.layers, alone.cache.layers, strict=True):
                assert type(mine) is type(theirs)
                torch.testing.assert_close(mine.keys, theirs.keys, rtol=0, atol=1e-6)
                torch.testing.assert_close(mine.values, theirs.values, rtol=0, atol=1e-6)
            ask = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
            expected = shipped.generate(ids, attention_mask=torch.ones_like(ids), **ask)
            ask["max_new_tokens"] = 7
            assert torch.equal(model.generate(**got.generation_inputs(), **ask), expected)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_any_lengths_in_any_order(lengths):
    model = MODEL
    prompts = [list(range(7, 7 + n)) for n in lengths]
    done = prefill(model, prompts, capacity=12)
    for prompt, got in zip(prompts, done, strict=True):
        assert got.input_ids.tolist() == [prompt]
        with torch.no_grad():
            alone = model(input_ids=torch.tensor([prompt])).logits[0, -1]
        torch.testing.assert_close(got.logits, alone, rtol=0, atol=1e-10)


MODEL = tiny_model("llama")
prepare(MODEL)


def test_no_prompts_give_nothing():
    assert prefill(MODEL, []) == []


def test_prompts_do_not_share_what_they_decode():
    first, second = prefill(MODEL, [[5, 6, 7], [8, 9]])
    MODEL.generate(**first.generation_inputs(), max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert second.cache.get_seq_length() == 2


@pytest.mark.parametrize(("prompts", "message"), [([[5], []], "prompt 1 is empty"), ([[5] * 20], "longer|capacity|20")])
def test_prompts_that_cannot_be_run_are_refused(prompts, message):
    with pytest.raises(PadlessError, match=message):
        prefill(MODEL, prompts, capacity=12)


def test_models_that_are_not_prepared_are_refused():
    with pytest.raises(PadlessError, match="not prepared"):
        prefill(tiny_model("llama"), [[5, 6]])


@pytest.mark.parametrize("name", ["bamba", "lfm2", "mamba2", "bloom", "rwkv"])
def test_models_that_keep_a_state_are_refused(name):
    model = tiny_model(name)
    prepare(model)
    with pytest.raises(PadlessError, match=r"state|takes no"):
        prefill(model, PROMPTS)
