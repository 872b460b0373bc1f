"""Packed rows of images, videos and text in Transformers' own Qwen-VL models: each sample gets what it gets alone."""

import copy
import dataclasses
from typing import Any

import pytest
import torch

from padless import packed_loss, varlen_attention
from padless.errors import PadlessError
from padless.frameworks.qwen_vl import MediaCollator, layout_of
from padless.frameworks.transformers import attention, prepare
from padless.frameworks.transformers_batch import transformers_batch
from padless.rows.media import tower_layout

from .qwen_samples import NAMES, PIXELS, all_kinds, alone, shipped

TIGHT = 1e-9
# Its norms sum the gradients of their weights over tokens in float32, whatever the dtype: the order of tokens shows.
GRADIENTS = {"qwen3_5": 1e-6}


def packed(name: str) -> tuple[Any, Any, list[dict[str, Any]], MediaCollator]:
    model = shipped(name)
    ready = copy.deepcopy(model)
    prepare(ready)
    layout = layout_of(model)
    return model, ready, all_kinds(apart=layout.frames_apart), MediaCollator(layout=layout)


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_gradients_of_both_towers_are_those_of_the_samples_alone(name: str) -> None:
    model, ready, samples, collator = packed(name)
    batch = collator.batch(samples).torch()
    logits = ready(**transformers_batch(batch)).logits
    loss = packed_loss(logits, batch)
    loss.backward()

    targets, total = batch.num_targets, torch.zeros((), dtype=torch.float64)
    for each, got in zip(samples, batch.unpack(logits[0]), strict=True):
        own = alone(model, each, collator.layout)
        torch.testing.assert_close(got, own, rtol=0, atol=TIGHT)
        labels = torch.tensor(each["labels"][1:])
        total = total + torch.nn.functional.cross_entropy(own[:-1], labels, reduction="sum") / targets
    total.backward()

    torch.testing.assert_close(loss, total, rtol=1e-12, atol=0)
    found = dict(ready.named_parameters())
    for parameter, expected in model.named_parameters():
        size = expected.grad.norm()
        assert size > 0, f"{parameter} takes part"
        assert (found[parameter].grad - expected.grad).norm() <= GRADIENTS.get(name, TIGHT) * size, parameter
    assert any(parameter.startswith("model.visual.blocks") for parameter in found)


@pytest.mark.parametrize("name", NAMES)
def test_missing_positions_are_made_for_each_segment(name: str) -> None:
    """Grids without positions, as a processor gives them; the boundaries say whose media are whose."""
    _, ready, samples, collator = packed(name)
    row = collator(samples)
    with torch.no_grad():
        expected = ready(**row).logits
        del row["position_ids"]
        row["second_per_grid_ts"] = [0.5, 1.0]
        torch.testing.assert_close(ready(**row).logits, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_the_tower_runs_in_few_calls_and_gives_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against Transformers' loop over frames and windows, forward and backward, on memory full of NaN."""
    _poison_scratch(monkeypatch)
    model, ready, _, collator = packed(name)
    grids = torch.tensor([[1, 6, 10], [2, 4, 4], [1, 8, 8], [1, 2, 14]])
    generator = torch.Generator().manual_seed(3)
    pixels = torch.randn(int(grids.prod(-1).sum()), PIXELS, generator=generator, dtype=torch.float64)
    known = {key: torch.from_numpy(value) for key, value in tower_layout(grids, collator.layout).items()}
    calls = []
    monkeypatch.setattr(attention, "varlen_attention", lambda *a, **k: calls.append(1) or varlen_attention(*a, **k))
    for more in ({}, known):
        looped = model.model.visual(pixels, grid_thw=grids)
        once = ready.model.visual(pixels, grid_thw=grids, **more)
        torch.testing.assert_close(once.pooler_output, looped.pooler_output, rtol=0, atol=TIGHT)
        for each, out in ((model, looped), (ready, once)):
            each.zero_grad()
            (out.pooler_output * torch.linspace(-1, 1, out.pooler_output.shape[1])).sum().backward()
        found = dict(ready.model.visual.named_parameters())
        for parameter, expected in model.model.visual.named_parameters():
            if expected.grad is not None and expected.grad.norm() > 0:
                difference = found[parameter].grad - expected.grad
                assert difference.norm() <= TIGHT * expected.grad.norm(), parameter
    assert len(calls) == 2 * len(ready.model.visual.blocks), "one call per layer, not one per window"


def _poison_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(make: Any) -> Any:
        def made(*args: Any, **options: Any) -> torch.Tensor:
            tensor = make(*args, **options)
            return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

        return made

    for function in ("empty", "empty_like"):
        monkeypatch.setattr(torch, function, poisoned(getattr(torch, function)))


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_gradient_checkpointing_changes_nothing(name: str) -> None:
    _, ready, samples, collator = packed(name)
    batch = collator.batch(samples).torch()
    found = []
    for checkpointing in (False, True):
        ready.zero_grad()
        ready.train()
        if checkpointing:
            ready.gradient_checkpointing_enable({"use_reentrant": False})
        packed_loss(ready(**transformers_batch(batch)).logits, batch).backward()
        found.append({key: value.grad.clone() for key, value in ready.named_parameters() if value.grad is not None})
    for key, value in found[0].items():
        torch.testing.assert_close(found[1][key], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_another_samples_pixels_move_nothing(name: str) -> None:
    """Not by a bit: the check that needs no reference run, through tower, decoder and recurrent layers."""
    _, ready, samples, collator = packed(name)
    changed = copy.deepcopy(samples)
    changed[1]["pixel_values"] += 1
    with torch.no_grad():
        before, after = (ready(**collator(each)).logits[0] for each in (samples, changed))
    lengths = [len(each["input_ids"]) for each in samples]
    for number, (a, b) in enumerate(zip(before.split(lengths), after.split(lengths), strict=True)):
        assert torch.equal(a, b) == (number != 1)


def test_hybrid_layers_reset_their_state_and_as_shipped_refuse() -> None:
    model, ready, samples, collator = packed("qwen3_5")
    report = prepare(ready)
    assert any("linear_attn" in layer for layer in report.own_mixers)
    row = collator(samples)
    with pytest.raises(ValueError, match="packed sequences"):
        model(**row, use_cache=False)
    with pytest.raises(PadlessError, match="cannot be packed"):
        prepare(shipped("qwen3_5"), stateful="fused")  # no kernel here that knows boundaries
    leaking = {key: value for key, value in row.items() if not key.startswith(("cu_seq", "max_length", "seq_idx"))}
    first = len(samples[0]["input_ids"])
    with torch.no_grad():
        logits = model(**leaking, use_cache=False).logits[0]
        own = alone(model, samples[1], collator.layout)
    assert float((logits[first : first + len(own)] - own).abs().max()) > 0.1, "its state runs over the boundary"


def test_old_fashioned_towers_keep_their_attention() -> None:
    report = prepare(shipped("llama"))
    assert report.towers == ()
    assert prepare(shipped("qwen2_5_vl")).towers == ("model.visual",)


def test_a_batch_in_bfloat16_becomes_a_call_without_leaving_its_device() -> None:
    """Pixels are never copied to the host for the sake of the boundaries, where numpy has no such type either."""
    _, _, samples, collator = packed("qwen2_5_vl")
    batch = collator.batch(samples).torch()
    assert batch.media is not None
    media = {key: x.bfloat16() if x.is_floating_point() else x for key, x in batch.media.items()}
    row = transformers_batch(dataclasses.replace(batch, media=media))
    assert row["pixel_values"].dtype == torch.bfloat16
    assert row["pixel_values"].data_ptr() == media["pixel_values"].data_ptr()
