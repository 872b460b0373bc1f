"""Every way to call a packed Qwen-VL row, right and wrong: what it does as shipped, prepared, and under the audit."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from padless import audit
from padless.errors import PadlessError
from padless.frameworks.qwen_vl import MediaCollator, layout_of
from padless.frameworks.transformers import prepare

from .qwen_samples import END, START, alone, image, sample, shipped

Row = dict[str, Any]
BOUNDARIES = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
SAMPLES = [
    sample([5, 6, START, *image(4, 4), END, 7, 8, 9], images=[[1, 4, 4]], seed=1),
    sample([10, START, *image(4, 8), END, 12, 13, 14, 15], images=[[1, 4, 8]], seed=2),
]
LENGTHS = [len(each["input_ids"]) for each in SAMPLES]
WRONG, RIGHT = 0.1, 1e-9


def without_boundaries(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in BOUNDARIES}


def types(row: Row) -> torch.Tensor:
    return (row["input_ids"] == 90).long()


def default(row: Row) -> Row:
    row = without_boundaries(row)
    del row["position_ids"]
    return {**row, "mm_token_type_ids": types(row)}


def two_axes(row: Row) -> Row:
    return {**without_boundaries(row), "position_ids": row["position_ids"][0]}


def three_axes(row: Row) -> Row:
    return {**without_boundaries(row), "position_ids": row["position_ids"][1:]}


def four_axes(row: Row) -> Row:
    return without_boundaries(row)


def with_cache(row: Row) -> Row:
    return {**without_boundaries(row), "use_cache": True}


def mask_of_ones(row: Row) -> Row:
    return {**without_boundaries(row), "attention_mask": torch.ones_like(row["input_ids"])}


def mask_of_segments(row: Row) -> Row:
    return {**without_boundaries(row), "attention_mask": row["seq_idx"].long() + 1}


def three_axes_and_kwargs(row: Row) -> Row:
    return {**row, "position_ids": row["position_ids"][1:]}


def temporal_as_text(row: Row) -> Row:
    axes = row["position_ids"][1:]
    return {**without_boundaries(row), "position_ids": torch.cat([axes[:1], axes])}


def global_positions(row: Row) -> Row:
    shift = row["seq_idx"] * LENGTHS[0]
    return {**without_boundaries(row), "position_ids": row["position_ids"] + shift}


def dense_mask(row: Row) -> Row:
    same = row["seq_idx"][:, :, None] == row["seq_idx"][:, None, :]
    seen = same & torch.ones_like(same).tril()
    mask = torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, torch.finfo(torch.float64).min)
    return {**three_axes(row), "attention_mask": mask[:, None]}


def dense_mask_by_kind(row: Row) -> Row:
    row = dense_mask(row)
    return {**row, "attention_mask": {"full_attention": row["attention_mask"]}}


LEAKING = (
    default,
    two_axes,
    three_axes,
    with_cache,
    mask_of_ones,
    mask_of_segments,
    three_axes_and_kwargs,
    temporal_as_text,
    global_positions,
)
SOUND = (four_axes, dense_mask, dense_mask_by_kind)

# With padless's boundaries in the call as well: what is left out or says the same is put right, the rest is refused.
REPAIRED = {default, two_axes, three_axes, four_axes, mask_of_ones, three_axes_and_kwargs}
# Without boundaries: a row that looks like one long sample is one; all else shows that it is packed and is refused.
LOOKS_LIKE_ONE_SAMPLE = (default, global_positions)
LOOKS_PACKED = (two_axes, three_axes, four_axes, with_cache, mask_of_ones, mask_of_segments, temporal_as_text)


@functools.cache
def models(name: str) -> tuple[Any, Any]:
    model = shipped(name)
    ready = copy.deepcopy(model)
    prepare(ready)
    return model, ready


@functools.cache
def expected(name: str) -> tuple[torch.Tensor, ...]:
    model, _ = models(name)
    with torch.no_grad():
        return tuple(alone(model, each, layout_of(model)) for each in SAMPLES)


def base(name: str) -> Row:
    return MediaCollator(layout=layout_of(models(name)[0]))(SAMPLES)


@torch.no_grad()
def error(model: Any, name: str, row: Row) -> float:
    """Largest difference of any sample's logits to those of the sample alone."""
    packed = model(**{"use_cache": False, **row}).logits[0]
    pieces = packed[: sum(LENGTHS)].split(LENGTHS)
    return max(float((a - b).abs().max()) for a, b in zip(pieces, expected(name), strict=True))


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("call", LEAKING, ids=lambda call: call.__name__)
def test_as_shipped_it_is_wrong(call: Callable[[Row], Row], name: str) -> None:
    assert error(models(name)[0], name, call(base(name))) > WRONG


@pytest.mark.parametrize("call", SOUND, ids=lambda call: call.__name__)
def test_as_shipped_it_is_right(call: Callable[[Row], Row]) -> None:
    assert error(models("qwen2_5_vl")[0], "qwen2_5_vl", call(base("qwen2_5_vl"))) < RIGHT


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("call", [*LEAKING, four_axes], ids=lambda call: call.__name__)
def test_prepared_and_with_boundaries_it_is_right_or_refused(call: Callable[[Row], Row], name: str) -> None:
    row = base(name)
    row = {**call(row), **{key: row[key] for key in BOUNDARIES}}
    if call in REPAIRED:
        assert error(models(name)[1], name, row) < RIGHT
    else:
        with pytest.raises(PadlessError):
            error(models(name)[1], name, row)


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("call", LOOKS_PACKED, ids=lambda call: call.__name__)
def test_prepared_and_without_boundaries_what_looks_packed_is_refused(call: Callable[[Row], Row], name: str) -> None:
    with pytest.raises(PadlessError):
        error(models(name)[1], name, call(base(name)))


@pytest.mark.parametrize("call", LOOKS_LIKE_ONE_SAMPLE, ids=lambda call: call.__name__)
def test_prepared_and_without_boundaries_the_audit_finds_what_looks_like_one_sample(
    call: Callable[[Row], Row],
) -> None:
    _, ready = models("qwen2_5_vl")
    collator = MediaCollator(layout=layout_of(ready))
    report = audit(ready, lambda samples: call(collator(samples)), samples=SAMPLES, checks=["isolation"])
    assert report.exit_code == 1, report


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_a_padded_tail_is_a_segment_of_its_own_and_a_mask_with_zeros_is_refused(name: str) -> None:
    model, ready = models(name)
    row = MediaCollator(layout=layout_of(model), pad_to_multiple=64)(SAMPLES)
    assert row["input_ids"].shape == (1, 64)
    assert error(ready, name, row) < RIGHT
    mask = (torch.arange(64) < sum(LENGTHS)).long()[None]
    with pytest.raises(PadlessError, match="attention_mask"):
        error(ready, name, {**row, "attention_mask": mask})
    with pytest.raises(PadlessError, match="restart"):
        error(ready, name, {**without_boundaries(row), "attention_mask": mask})
    assert error(model, name, {**without_boundaries(row), "attention_mask": mask}) > WRONG


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_two_packed_rows_in_one_call(name: str) -> None:
    _, ready = models(name)
    row = base(name)
    pixels = {key: torch.cat([row[key]] * 2) for key in ("pixel_values", "image_grid_thw")}
    cuts = torch.cat([row["cu_seq_lens_q"], row["cu_seq_lens_q"][1:] + sum(LENGTHS)])
    twice = {
        "input_ids": row["input_ids"].repeat(2, 1),
        "position_ids": row["position_ids"].repeat(1, 2, 1),
        "cu_seq_lens_q": cuts,
        **pixels,
    }
    with torch.no_grad():
        logits = ready(**twice).logits
    once = torch.cat(expected(name))
    torch.testing.assert_close(logits, torch.stack([once, once]), rtol=0, atol=RIGHT)


def test_ordinary_calls_stay_what_they_were() -> None:
    """One sample, a left-padded batch with its mask, and generation, with positions the model makes itself."""
    model, ready = models("qwen2_5_vl")
    ids = torch.tensor([SAMPLES[0]["input_ids"]])
    call = {
        "input_ids": torch.nn.functional.pad(ids, (3, 0)),
        "attention_mask": torch.nn.functional.pad(torch.ones_like(ids), (3, 0)),
        "pixel_values": SAMPLES[0]["pixel_values"],
        "image_grid_thw": SAMPLES[0]["image_grid_thw"],
    }
    call["mm_token_type_ids"] = types(call)
    with torch.no_grad():
        torch.testing.assert_close(ready(**call).logits[:, 3:], model(**call).logits[:, 3:], rtol=0, atol=RIGHT)
        made = [each.generate(**call, max_new_tokens=4, do_sample=False) for each in (model, ready)]
    assert torch.equal(*made)


def test_positions_without_a_text_axis_must_start_at_zero_in_every_segment() -> None:
    row = base("qwen2_5_vl")
    row["position_ids"] = global_positions(row)["position_ids"][1:]
    with pytest.raises(PadlessError, match="not 0 at token"):
        error(models("qwen2_5_vl")[1], "qwen2_5_vl", row)


@pytest.mark.slow
@pytest.mark.parametrize("call", LEAKING, ids=lambda call: call.__name__)
def test_the_audit_finds_it(call: Callable[[Row], Row]) -> None:
    model, _ = models("qwen2_5_vl")
    collator = MediaCollator(layout=layout_of(model))
    report = audit(
        model, lambda samples: call(collator(samples)), samples=SAMPLES, checks=["isolation", "positions", "parity"]
    )
    assert report.exit_code == 1, report


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_the_audit_proves_what_is_right(name: str) -> None:
    _, ready = models(name)
    checks = ["isolation", "positions", "parity", "gradients", "targets"]
    report = audit(ready, MediaCollator(layout=layout_of(ready)), samples=SAMPLES, checks=checks)
    assert report.exit_code == 0, report
