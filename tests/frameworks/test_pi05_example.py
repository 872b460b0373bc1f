"""The example trains, padded and padding-free alike; the proof fails where something is wrong; the worked ablation."""

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from padless.errors import PadlessError, ViolationError
from padless.frameworks.pi05 import installing, trim
from padless.frameworks.pi05.ablating import policy_ablation
from padless.frameworks.pi05.generated import INSTRUCTIONS, generate
from padless.frameworks.pi05.openpi import padding_free_openpi
from padless.frameworks.pi05.proving import prove
from padless.frameworks.pi05.small import SmallConfig, SmallPolicy, small_samples
from padless.measure.ablation import Change, ablate

from . import pi05_stand_ins as stand_ins

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("train_pi05")


@pytest.mark.slow
def test_the_example_trains_proves_and_reports(example, tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    missing = str(tmp_path / "missing.json")
    found = example.main(
        ["--steps", "12", "--episodes", "40", "--held-out", "10", "--instructions", missing, "--report", str(report)]
    )
    assert found["proof"].failures == []
    assert found["apart"] < 1e-4
    losses = found["losses"]["padding-free"]
    assert len(losses) == 12
    assert np.mean(losses[-4:]) < 0.9 * np.mean(losses[:4])
    assert found["ablation"]["right_wrist"].verdict == "lossless"
    text = report.read_text()
    for word in ("proven", "padding-free", "right_wrist", "lossless"):
        assert word in text


def test_liberos_instructions_are_read_where_they_are(example, shared_data: Path) -> None:
    found = example.instructions_of(shared_data / "text" / "libero_instructions.json")
    assert len(found) == 6
    assert len(found[0].split()) < len(found[-1].split()) <= 48
    assert found != INSTRUCTIONS == example.instructions_of(shared_data / "absent.json")


# The proof ------------------------------------------------------------------------------------------------------------


def policy_and_samples(**more: Any) -> tuple[SmallPolicy, dict[str, Any]]:
    config = SmallConfig(**more)
    given = small_samples(config, views=[2, 3, 1], prompts=[5, 9, 3], dtype=torch.float64)
    return SmallPolicy(config, dtype=torch.float64), given


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("install", [installing.padding_free, trim])
def test_a_right_policy_is_proven_and_left_as_it_was(install, state) -> None:
    policy, given = policy_and_samples(state=state)
    proof = prove(policy, given, install=install)
    assert proof.failures == []
    assert proof.moved > 1e-3
    assert proof.tokens < proof.slots
    assert "embed_prefix" not in policy.__dict__


@pytest.mark.parametrize(
    ("part", "replacement", "shows"),
    [
        ("_rows", "no segments", "leak"),
        ("run_packed", "one condition", "losses"),
        ("prompt_slice", "cut too short", "losses"),
    ],
)
def test_what_is_wrong_is_not_proven(part, replacement, shows, monkeypatch) -> None:
    policy, given = policy_and_samples()
    right = getattr(installing, part)

    def no_segments(*args):
        rows = right(*args)
        prefix, suffix = rows.num_prefix, rows.num_tokens - rows.num_prefix
        wrong = installing.PolicyRows.of(np.ones((1, prefix)), suffix_ranks=np.ones(suffix, int))
        object.__setattr__(rows, "batch", wrong.batch)
        object.__setattr__(rows, "order", wrong.order)
        return rows

    def one_condition(forward, rows, *, conditions, **more):
        return right(forward, rows, conditions=[None, conditions[1][:1].expand_as(conditions[1])], **more)

    wrongs = {
        "no segments": no_segments,
        "one condition": one_condition,
        "cut too short": lambda *_: slice(0, 4),
    }
    monkeypatch.setattr(installing, part, wrongs[replacement])
    proof = prove(policy, given, strict=False)
    assert shows in proof.failures
    with pytest.raises(ViolationError, match="NOT proven"):
        prove(policy, given)


def test_a_policy_that_looks_at_masked_views_is_not_proven(monkeypatch) -> None:
    """The seam is right and the model is wrong: masks that do not hide."""
    policy, given = policy_and_samples()
    inner = policy.embed_prefix

    def everything_is_real(_, *args):
        x, real, starts = inner(*args)
        return x, real | True, starts

    monkeypatch.setattr(SmallPolicy, "embed_prefix", everything_is_real)
    assert "losses" in prove(policy, given, strict=False).failures


def test_a_model_with_another_call_is_proven_and_ablated_by_a_function() -> None:
    """openpi takes an observation, and has a norm of its own."""
    config = SmallConfig(cameras=stand_ins.OPENPI_KEYS)
    model = stand_ins.PI0Pytorch(config)

    def run(given: dict[str, Any]) -> torch.Tensor:
        seen = SimpleNamespace(
            images=dict(zip(config.cameras, given["images"], strict=True)),
            image_masks=dict(zip(config.cameras, given["img_masks"], strict=True)),
            tokenized_prompt=given["tokens"],
            tokenized_prompt_mask=given["masks"],
            state=torch.zeros(len(given["tokens"]), 7),
        )
        return model(seen, given["actions"], given["noise"], given["time"])

    given = small_samples(config, views=[2, 3, 1], prompts=[5, 9, 3], dtype=torch.float64)
    assert prove(model, given, run=run, install=padding_free_openpi).failures == []
    data = generate(config, episodes=12, frames=1, shows=("light", "light", "nothing"), dtype=torch.float64)
    subject = policy_ablation(model, data | {"state": None}, cameras=config.cameras, run=run)
    assert ablate(subject, draws=1)["right_wrist_0_rgb"].verdict == "lossless"


def test_a_proof_needs_two_samples_and_one_result() -> None:
    policy, given = policy_and_samples()
    alone = {k: [x[:1] for x in v] if isinstance(v, list) else v[:1] for k, v in given.items()}
    with pytest.raises(PadlessError, match="nobody to leak to"):
        prove(policy, alone)
    policy.paligemma_with_expert.tower.norm = torch.nn.Sequential(  # type: ignore[assignment]
        policy.paligemma_with_expert.tower.norm, torch.nn.Dropout(0.5)
    )
    with pytest.raises(PadlessError, match="evaluation mode"):
        prove(policy, given)


# Ablation of a policy -------------------------------------------------------------------------------------------------


def test_masked_slots_are_lossless_and_a_view_that_is_used_is_not() -> None:
    """A policy whose output hangs on one view by construction; nothing is trained."""
    config = SmallConfig()
    policy = SmallPolicy(config, dtype=torch.float64)
    data = generate(config, episodes=40, frames=2, shows=("light", "blank", "nothing"), dtype=torch.float64)
    subject = policy_ablation(policy, data, cameras=config.cameras, cost=config.cost)
    assert [slot.kind for slot in subject.slots] == ["real", "constant", "masked everywhere"]
    assert all(0 < slot.compute < 1 for slot in subject.slots)  # type: ignore[operator]
    found = ablate(subject, draws=1, tolerance=1e-6)
    assert found["right_wrist"].verdict == "lossless"
    assert found["left_wrist"].effect("swap").change.high == 0  # type: ignore[union-attr]
    assert found["base"].effect("swap").change.low < found["base"].effect("swap").change.high  # type: ignore[union-attr]


def test_masking_equals_removing_the_slot_and_swapping_takes_another_episode() -> None:
    config = SmallConfig()
    policy = SmallPolicy(config, dtype=torch.float64)
    data = generate(config, episodes=6, frames=3, shows=("light", "light", "nothing"), dtype=torch.float64)
    subject = policy_ablation(policy, data, cameras=config.cameras)
    masked = subject.loss(Change(slot="left_wrist"))
    assert not np.allclose(masked, subject.loss(Change(slot=None)))
    removed = {**data, "images": [data["images"][0]], "img_masks": [data["img_masks"][0]]}
    alone = policy_ablation(policy, removed, cameras=config.cameras[:1]).loss(Change(slot=None))
    assert np.abs(masked - alone).max() < 1e-9
    one = {k: v for k, v in data.items() if k != "episodes"} | {"episodes": np.zeros(18, int)}
    with pytest.raises(PadlessError, match="cannot be swapped between episodes"):
        policy_ablation(policy, one, cameras=config.cameras)


@pytest.mark.slow
def test_the_worked_example_says_what_was_built_in() -> None:
    from padless.frameworks.pi05.worked import small_policy

    found = ablate(small_policy(steps=70), tolerance=0.1)
    verdicts = {each.slot.name: each.verdict for each in found.results}
    assert verdicts["base"] == "load-bearing"
    assert verdicts["ceiling"] == "candidate"  # one picture, always: swapping it changes nothing at all
    assert verdicts["right_wrist"] == "lossless"
    assert found["ceiling"].as_is != "yes"  # its absence is felt, though it never said anything
    assert found["wrist"].verdict in ("candidate", "undecided")
