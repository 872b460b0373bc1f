"""Verdicts on slots whose worth is known, intervals that hold as often as they say, callbacks that are not paired."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.errors import PadlessError, ViolationError
from padless.measure.ablation import Ablatable, Change, ablate
from padless.measure.ablation_bootstrap import bootstrap, by_task, student
from padless.measure.ablation_power import difference_half_width, episodes_needed
from padless.measure.ablation_slots import Slot

EPISODES, FRAMES = 40, 5


def subject(
    effects: dict[tuple[str, str], Any], *, tasks: Any = None, episodes: int = EPISODES, kinds=None
) -> Ablatable:
    """A model whose loss moves by `effects[slot, how]` (a number or one per sample)."""
    owner = np.repeat(np.arange(episodes), FRAMES)
    names = list(dict.fromkeys(name for name, _ in effects))
    kinds = kinds or {}

    def loss(change: Change) -> np.ndarray:
        base = 1 + 0.2 * np.random.default_rng(change.draw).normal(size=len(owner))
        return base + (0 if change.slot is None else effects.get((change.slot, change.how), 0))

    slots = [
        Slot(
            name=name,
            kind=kinds.get(name, "real"),
            tokens=256,
            present=float(name not in kinds or kinds[name] != "masked everywhere"),
        )
        for name in names
    ]
    return Ablatable(slots=slots, loss=loss, episodes=owner, tasks=tasks)


def spread(mean: float, scale: float, seed: int = 0, episodes: int = EPISODES) -> np.ndarray:
    """A change that differs from episode to episode, and hardly inside one."""
    rng = np.random.default_rng(seed)
    return np.repeat(mean + scale * rng.normal(size=episodes), FRAMES) + 0.001 * rng.normal(size=episodes * FRAMES)


def verdict(effect: Any, **options: Any) -> str:
    return ablate(subject({("view", "swap"): effect, ("view", "mask"): effect}), **options)["view"].verdict


def test_verdicts() -> None:
    assert verdict(spread(0.0, 0.002)) == "candidate"
    assert verdict(spread(0.05, 0.02)) == "load-bearing"
    assert verdict(spread(0.01, 0.02)) == "undecided"  # the interval includes the tolerance of 1 %
    assert verdict(spread(-0.1, 0.02)) == "candidate"  # better without


@settings(max_examples=40, deadline=None)
@given(mean=st.floats(-0.05, 0.08), scale=st.floats(0.001, 0.1), seed=st.integers(0, 50))
def test_never_a_candidate_while_the_interval_includes_the_tolerance(mean, scale, seed) -> None:
    found = ablate(subject({("view", "swap"): spread(mean, scale, seed)}), replacements=("swap",), resamples=400)[
        "view"
    ]
    change = found.effects[0].change
    if found.verdict == "candidate":
        assert change.high < 0.01
    elif found.verdict == "load-bearing":
        assert change.low > 0.01
    else:
        assert change.low <= 0.01 <= change.high


def test_a_swap_decides_and_a_mask_says_whether_this_checkpoint_can_do_without() -> None:
    found = ablate(subject({("view", "swap"): 0.0, ("view", "mask"): spread(0.5, 0.1)}))["view"]
    assert (found.verdict, found.as_is) == ("candidate", "no")
    assert "may need it" in found.reason
    assert (
        ablate(subject({("view", "mask"): spread(0.5, 0.1)}), replacements=("mask",))["view"].verdict == "load-bearing"
    )


def test_one_task_that_needs_the_view_is_enough() -> None:
    tasks = np.repeat(np.arange(EPISODES) % 2, FRAMES).astype(str)
    effect = spread(0.0, 0.001) + 0.015 * (tasks == "1")
    found = ablate(subject({("view", "swap"): effect}, tasks=tasks), replacements=("swap",))["view"]
    assert found.effects[0].change.high < 0.011
    assert found.verdict == "load-bearing"
    assert found.effects[0].worst[0] == "1"


def test_few_episodes_decide_nothing() -> None:
    effect = spread(0.5, 0.01, episodes=9)
    assert ablate(subject({("view", "swap"): effect}, episodes=9))["view"].verdict == "undecided"
    tasks = np.repeat([["a"] * 35 + ["b"] * 5], FRAMES)
    found = ablate(subject({("view", "swap"): spread(0.0, 0.001)}, tasks=tasks))["view"]
    assert found.verdict == "undecided"
    assert "b: 5 episodes" in found.reason


def test_a_slot_that_is_masked_everywhere_is_lossless_and_that_is_checked() -> None:
    kinds = {"view": "masked everywhere"}
    assert ablate(subject({("view", "mask"): 0.0}, kinds=kinds))["view"].verdict == "lossless"
    with pytest.raises(ViolationError, match="attends to masked tokens"):
        ablate(subject({("view", "mask"): 1e-9}, kinds=kinds))


def test_a_callback_that_draws_new_noise_is_refused() -> None:
    rng = np.random.default_rng(0)
    loose = Ablatable(slots=[], loss=lambda _: rng.normal(size=4), episodes=[0, 1, 2, 3])
    with pytest.raises(PadlessError, match="fix noise and time steps per draw"):
        ablate(loose)


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda _: np.ones(3), "shape .3,."),
        (lambda _: np.full(4, np.nan), "finite: False"),
        (lambda _: {}["action"], "fails with KeyError: 'action'"),
    ],
)
def test_what_is_no_loss_per_sample_is_refused(loss, says) -> None:
    with pytest.raises(PadlessError, match=says):
        ablate(Ablatable(slots=[], loss=loss, episodes=[0, 1, 2, 3]))


@pytest.mark.parametrize("level", [-1.0, 0.0])
def test_a_loss_that_is_not_above_zero_is_refused(level: float) -> None:
    """Relative to a negative loss, a view that is needed would look as if it did harm."""
    rises = Ablatable(
        slots=[Slot(name="view", kind="real", tokens=1)],
        loss=lambda change: np.full(40, level + 0.2 * (change.slot is not None)),
        episodes=np.arange(40),
    )
    with pytest.raises(PadlessError, match="must be above 0"):
        ablate(rises)


@pytest.mark.parametrize("wrong", [{"resamples": 0}, {"seed": -1}, {"draws": 0}, {"tolerance": 0.0}])
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PadlessError, match=next(iter(wrong))):
        ablate(subject({("view", "swap"): 0.0}), **wrong)


def test_an_interval_without_ends_is_null_in_json() -> None:
    rare = np.where(np.arange(EPISODES * FRAMES) < FRAMES, "rare", "often")
    found = ablate(subject({("view", "swap"): 0.0}, tasks=rare)).to_dict()
    of_rare = json.loads(json.dumps(found, allow_nan=False))["results"][0]["effects"][0]["tasks"]["rare"]
    assert (of_rare["low"], of_rare["high"], of_rare["episodes"]) == (None, None, 1)


def test_actions_are_compared_where_asked() -> None:
    given = subject({("view", "swap"): 0.0})
    acts = np.random.default_rng(1).normal(size=(EPISODES * FRAMES, 3, 2))
    moved = Ablatable(
        slots=given.slots,
        loss=given.loss,
        episodes=given.episodes,
        actions=lambda change: acts + (0.1 if change.slot else 0),
    )
    assert ablate(moved)["view"].action_change == pytest.approx(0.1 / acts.std())


# Slots ----------------------------------------------------------------------------------------------------------------


def test_slots_are_told_by_what_is_seen_of_them() -> None:
    pictures = np.zeros((4, 2, 2))
    pictures[3] = 1
    classify = lambda masks: Slot.of("v", tokens=1, masks=masks, images=pictures)  # noqa: E731
    assert classify([False] * 4).kind == "masked everywhere"
    assert classify([True, True, True, False]).kind == "constant"  # what is masked does not count
    assert (classify([True] * 4).kind, classify([True, False, False, True]).present) == ("real", 0.5)
    with pytest.raises(PadlessError, match="is masked everywhere and present"):
        Slot(name="v", kind="masked everywhere", tokens=1, present=0.5)


# Intervals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("episodes", [10, 40])
def test_intervals_hold_as_often_as_they_say(episodes: int) -> None:
    """Also with episodes whose samples are alike, where a bootstrap over samples would be far too sure."""
    inside = naive = 0
    for seed in range(400):
        values = spread(0.3, 1.0, seed, episodes)
        owner = np.repeat(np.arange(episodes), FRAMES)
        found = bootstrap(values, owner, resamples=400, seed=seed)
        alone = bootstrap(values, np.arange(len(values)), resamples=400, seed=seed)
        inside += found.low <= 0.3 <= found.high
        naive += alone.low <= 0.3 <= alone.high
    assert 0.92 <= inside / 400 <= 0.985
    assert naive / 400 < 0.75


def test_one_episode_says_nothing_and_samples_weigh_the_same() -> None:
    assert bootstrap(np.ones(3), np.zeros(3, int)).high == np.inf
    values, owner = np.array([1.0, 1, 1, 5]), np.array([0, 0, 0, 1])
    assert bootstrap(values, owner).mean == values.mean()


def test_intervals_of_tasks_are_wider_so_that_they_hold_together() -> None:
    values, owner = spread(0.0, 1.0), np.repeat(np.arange(EPISODES), FRAMES)
    tasks = np.repeat(np.arange(EPISODES) % 4, FRAMES)
    found = by_task(values, owner, tasks, resamples=4000)
    alone = bootstrap(values[tasks == 0], owner[tasks == 0], resamples=4000)
    assert list(found) == ["0", "1", "2", "3"]
    assert found["0"].high - found["0"].low > 1.2 * (alone.high - alone.low)


@pytest.mark.parametrize(("freedom", "quantile"), [(3, 3.182), (9, 2.262), (29, 2.045), (199, 1.972)])
def test_students_factor(freedom: int, quantile: float) -> None:
    assert 1.959964 * student(0.95, freedom) == pytest.approx(quantile, rel=0.011)


# Episodes -------------------------------------------------------------------------------------------------------------


def test_what_500_and_2000_rollouts_can_tell_about_98_4_against_98_2_percent() -> None:
    assert 100 * difference_half_width(0.984, 0.982, 500) == pytest.approx(1.6, abs=0.05)
    assert 100 * difference_half_width(0.984, 0.982, 2000) == pytest.approx(0.8, abs=0.05)
    assert episodes_needed(0.984, 0.002).episodes > 60_000


@pytest.mark.parametrize(("success", "drop"), [(0.984, 0.015), (0.9, 0.05), (0.67, 0.05)])
def test_the_episodes_that_are_needed_are_enough_and_no_more(success: float, drop: float) -> None:
    """The power of the two-proportion test, by simulation."""
    needed = episodes_needed(success, drop)

    def power(episodes: int) -> float:
        rng = np.random.default_rng(0)
        p1, p2 = (rng.binomial(episodes, rate, size=20_000) / episodes for rate in (success, success - drop))
        pooled = (p1 + p2) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            z = (p1 - p2) / np.sqrt(2 * pooled * (1 - pooled) / episodes)
        return float(np.mean(z > 1.959964))

    assert power(needed.episodes) == pytest.approx(0.8, abs=0.02)
    assert power(needed.episodes // 2) < 0.6


@pytest.mark.parametrize("wrong", [(98.4, 0.01), (0.9, 0.0), (0.1, 0.2), (0.9, -0.1)])
def test_rates_that_are_none_are_refused(wrong: tuple[float, float]) -> None:
    with pytest.raises(PadlessError):
        episodes_needed(*wrong)
