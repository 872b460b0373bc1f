"""The helpers for LeRobot and openpi, on stand-ins that keep their call contracts."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from padless.errors import PadlessError
from padless.frameworks.pi05 import lerobot, openpi, padding_free, trim
from padless.frameworks.pi05.small import SmallConfig, small_samples

from . import pi05_stand_ins as stand_ins

CAMERAS = ("base", "wrist", "empty_camera_0")


def gradients_of(model, run) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss = run()
    loss.mean().backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(found, expected) -> None:
    assert (found[0] - expected[0]).abs().max() < 1e-9
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        assert (found[1][name] - gradient).abs().max() < 1e-9 * gradient.abs().max().clamp(min=1e-3), name


def lerobot_batch(policy: stand_ins.PolicyOfLeRobot, *, cameras: int = 2) -> dict[str, Any]:
    given = small_samples(policy.model.config, views=[3, 3, 3], prompts=[4, 17, 9], dtype=torch.float64)
    names = list(policy.config.image_features)[:cameras]
    return {name: image.sigmoid() for name, image in zip(names, given["images"], strict=False)} | {
        "observation.language.tokens": given["tokens"],
        "observation.language.attention_mask": given["masks"],
        "action": given["actions"],
        "noise": given["noise"],
        "time": given["time"],
    }


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("install", [lerobot.padding_free_policy, lerobot.trim_policy])
def test_a_lerobot_policy_keeps_loss_and_gradients(install, training) -> None:
    policy = stand_ins.PolicyOfLeRobot(CAMERAS).train(training)
    batch = lerobot_batch(policy)
    expected = gradients_of(policy, lambda: policy(batch))
    handle = install(policy)
    assert_same(gradients_of(policy, lambda: policy(batch)), expected)
    assert (handle.views, handle.view_slots) == (6, 9)
    handle.remove()
    assert not {"_preprocess_images", "embed_prefix", "forward"} & (
        policy.__dict__.keys() | policy.model.__dict__.keys()
    )
    assert_same(gradients_of(policy, lambda: policy(batch)), expected)


def test_a_camera_may_be_missing_in_some_samples_of_a_lerobot_batch() -> None:
    policy = stand_ins.PolicyOfLeRobot(CAMERAS)
    batch = lerobot_batch(policy)
    wrist = "observation.images.wrist"
    batch[f"{wrist}_is_pad"] = torch.tensor([False, True, False])
    handle = lerobot.padding_free_policy(policy)
    found = policy(batch)
    assert handle.views == 5
    batch[wrist][1] = 0.123  # nobody may look at it
    assert torch.equal(policy(batch), found)
    images, _ = policy._preprocess_images(batch)
    handle.remove()
    masks = [torch.ones(3).bool(), torch.tensor([True, False, True]), torch.zeros(3).bool()]
    tokens, real = batch["observation.language.tokens"], batch["observation.language.attention_mask"]
    padded = policy.model(images, masks, tokens, real, batch["action"], batch["noise"], batch["time"]).mean()
    assert (padded - found).abs() < 1e-9


def test_a_compiled_policy_is_trimmed_to_buckets_and_not_packed() -> None:
    policy = stand_ins.PolicyOfLeRobot(CAMERAS, compile_model=True)
    with pytest.raises(PadlessError, match="trim_policy"):
        lerobot.padding_free_policy(policy)
    batch = lerobot_batch(policy)
    expected = policy(batch)
    widths = []
    inner = policy.model.paligemma_with_expert.forward
    policy.model.paligemma_with_expert.forward = lambda **given: (
        widths.append(  # type: ignore[method-assign]
            given["inputs_embeds"][0].shape[1]
        )
        or inner(**given)
    )
    lerobot.trim_policy(policy, buckets=(8, 20))
    assert (policy(batch) - expected).abs() < 1e-9
    assert widths == [2 * 4 + 20]  # two views, and 17 prompt tokens in the bucket of 20


def test_dynamic_prompts_change_the_padding_and_nothing_else() -> None:
    step = stand_ins.TokenizerStep()
    prompts = [[5, 6, 7], [8] * 9, [9] * 40]
    tokens, real = step(prompts)
    lerobot.dynamic_prompts(SimpleNamespace(steps=[object(), step]))
    for longest in (3, 2):
        short, short_real = step(prompts[:longest])
        width = short.shape[1]
        assert width == min(24, max(map(len, prompts[:longest])))
        assert torch.equal(short, tokens[:longest, :width])
        assert torch.equal(short_real, real[:longest, :width])
        assert not real[:longest, width:].any()
    with pytest.raises(PadlessError, match="0 tokenizer steps"):
        lerobot.dynamic_prompts(SimpleNamespace(steps=[object()]))


def test_empty_cameras_leave_a_policy_and_its_loss_stays() -> None:
    policy = stand_ins.PolicyOfLeRobot(CAMERAS)
    batch = lerobot_batch(policy)
    expected = policy(batch)
    dropped = lerobot.drop_empty_cameras(policy, {"observation.images.base", "observation.images.wrist", "action"})
    assert dropped == ("observation.images.empty_camera_0",)
    assert len(policy._preprocess_images(batch)[0]) == 2
    assert (policy(batch) - expected).abs() < 1e-9


def test_a_camera_with_pictures_is_not_dropped_as_padding() -> None:
    policy = stand_ins.PolicyOfLeRobot(CAMERAS)
    with pytest.raises(PadlessError, match="is pruning, not padding removal"):
        lerobot.drop_empty_cameras(policy, set(policy.config.image_features))
    with pytest.raises(PadlessError, match="none of the policy's cameras"):
        lerobot.drop_empty_cameras(policy, {"image"})


def observation(config: SmallConfig, given: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(
        images=dict(zip(config.cameras, given["images"], strict=True)),
        image_masks=dict(zip(config.cameras, given["img_masks"], strict=True)),
        tokenized_prompt=given["tokens"],
        tokenized_prompt_mask=given["masks"],
        state=given.get("state", torch.zeros(len(given["tokens"]), 7)),
    )


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("install", [openpi.padding_free_openpi, openpi.trim_openpi])
def test_an_openpi_model_keeps_losses_and_gradients(install, state, training) -> None:
    config = SmallConfig(cameras=stand_ins.OPENPI_KEYS, state=state)
    model = stand_ins.PI0Pytorch(config).train(training)
    given = small_samples(config, views=[2, 3, 1], prompts=[4, 17, 9], dtype=torch.float64)
    seen = observation(config, given)
    run = lambda: model(seen, given["actions"], given["noise"], given["time"])  # noqa: E731
    expected = gradients_of(model, run)
    handle = install(model)
    assert_same(gradients_of(model, run), expected)
    assert (handle.views, handle.view_slots) == (6, 9)


def test_two_batches_in_flight_are_recomputed_with_their_own_rows() -> None:
    """Layers alone are checkpointed, as both libraries do: backward runs them again after another batch has passed."""
    model = stand_ins.ModelOfLeRobot(SmallConfig()).train()
    batches = [
        small_samples(model.config, views=views, prompts=prompts, dtype=torch.float64)
        for views, prompts in (((2, 3), (4, 9)), ((1, 1), (12, 3)))
    ]
    run = lambda: torch.stack([model(**batch).mean() for batch in batches])  # noqa: E731
    expected = gradients_of(model, run)
    padding_free(model)
    assert_same(gradients_of(model, run), expected)


def test_openpi_takes_two_cameras_where_it_insisted_on_three() -> None:
    config = SmallConfig(cameras=stand_ins.OPENPI_KEYS)
    model = stand_ins.PI0Pytorch(config)
    given = small_samples(config, views=[2, 2], prompts=[4, 17], dtype=torch.float64)
    three = observation(config, given)
    expected = model(three, given["actions"], given["noise"], given["time"])
    two = observation(config, given)
    del two.images["right_wrist_0_rgb"], two.image_masks["right_wrist_0_rgb"]
    with pytest.raises(ValueError, match="missing keys"):
        model(two, given["actions"], given["noise"], given["time"])
    openpi.padding_free_openpi(model)
    assert (model(two, given["actions"], given["noise"], given["time"]) - expected).abs().max() < 1e-9


# What is refused ------------------------------------------------------------------------------------------------------


def test_installing_twice_copying_and_strangers_are_refused() -> None:
    policy = stand_ins.PolicyOfLeRobot(CAMERAS)
    handle = padding_free(policy.model)
    with pytest.raises(PadlessError, match="already"):
        trim(policy.model)
    with pytest.raises(PadlessError, match="a copy would run the layers of the original"):
        copy.deepcopy(policy)
    handle.remove()
    copy.deepcopy(policy)
    with pytest.raises(PadlessError, match="expected the torch class of a pi0"):
        trim(torch.nn.Linear(1, 1))


def test_attention_that_cannot_be_told_is_refused_and_nothing_stays_installed(monkeypatch) -> None:
    monkeypatch.delattr(stand_ins, "modeling_gemma")
    model = stand_ins.ModelOfLeRobot(SmallConfig())
    with pytest.raises(PadlessError, match="would let samples see each other"):
        padding_free(model)
    assert "embed_prefix" not in model.__dict__


def test_positions_of_another_kind_are_refused() -> None:
    model = stand_ins.ModelOfLeRobot(SmallConfig())
    padding_free(model)
    experts = model.paligemma_with_expert
    inner = experts.forward
    experts.__dict__["forward"] = lambda **given: inner(**given | {"position_ids": given["position_ids"] + 1})
    given = small_samples(model.config, views=[3], prompts=[4], dtype=torch.float64)
    with pytest.raises(PadlessError, match="not cumsum"):
        model(**given)


def test_clips_are_refused() -> None:
    model = stand_ins.ModelOfLeRobot(SmallConfig())
    padding_free(model)
    given = small_samples(model.config, views=[3], prompts=[4], dtype=torch.float64)
    given["images"] = [image[:, None] for image in given["images"]]
    with pytest.raises(PadlessError, match="leave this policy padded"):
        model(**given)


def test_one_hook_serves_many_models_and_leaves_other_masks_alone() -> None:
    first, second = stand_ins.ModelOfLeRobot(SmallConfig()), stand_ins.ModelOfLeRobot(SmallConfig())
    padding_free(first)
    hook = stand_ins.modeling_gemma.eager_attention_forward
    padding_free(second)
    assert stand_ins.modeling_gemma.eager_attention_forward is hook
    q, mask = torch.randn(1, 2, 3, 4), torch.zeros(1, 1, 3, 3)
    out = hook(None, q, q[:, :1], q[:, :1], mask, 0.5)
    assert torch.equal(out[0], stand_ins.eager_attention_forward(None, q, q[:, :1], q[:, :1], mask, 0.5)[0])
