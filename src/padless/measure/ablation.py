"""Which views a policy could do without: paired ablation on held-out data, with an interval and a verdict.

The same samples, noise and time steps are run with and without a slot; what counts is the difference per sample. Its
interval comes from a bootstrap over episodes, because frames of one episode are nearly copies of each other.

Two replacements answer two questions. *Swap* puts the picture of another episode in a view's place: the input stays
what the model knows, so a change says that the policy uses what this view shows. *Mask* takes its tokens away: a model
that always had them may suffer from their absence alone, even if they never said anything, so a change says that this
very checkpoint cannot do without. Whether a model *trained* without a view would do as well, only training and rolling
out can tell: the verdict "candidate" says that it is worth the trouble.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from padless.errors import PadlessError, ViolationError
from padless.measure.ablation_bootstrap import Estimate, bootstrap, by_task
from padless.measure.ablation_slots import Slot

Verdict = Literal["lossless", "candidate", "load-bearing", "undecided"]
How = Literal["mask", "swap"]

FEWEST_EPISODES = 10
"""Below this a bootstrap over episodes is no more than a guess, and nothing is decided."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a callback is asked to do to its held-out samples.

    Attributes:
        slot: Name of the slot; None: nothing, the baseline.
        how: `"mask"`: nobody attends to it, which equals taking its tokens away. `"swap"`: the picture of another
            episode takes its place, which keeps the input in distribution.
        draw: Number of the noise and time steps to use: equal numbers must mean equal noise, whatever the change.
    """

    slot: str | None
    how: How = "mask"
    draw: int = 0


Callback = Callable[[Change], Any]


@dataclass(frozen=True, kw_only=True)
class Ablatable:
    """A model and held-out samples, as `ablate` needs them; it knows no framework.

    Attributes:
        slots: What may be taken away.
        loss: `loss(change) -> float[N]`, the loss of each sample under a change.
        episodes: int[N], which episode a sample is from.
        tasks: str or int [N], which task; None: one task.
        actions: `actions(change) -> float[N, ...]`, what the policy would do, from the draw's noise; None: not asked.
    """

    slots: Sequence[Slot]
    loss: Callback
    episodes: Any
    tasks: Any = None
    actions: Callback | None = None


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What one replacement did to the loss.

    Attributes:
        how: The replacement.
        change: Mean relative change in loss, over all samples.
        tasks: The same for each task alone, with wider intervals that hold together; empty where there is one task.
    """

    how: How
    change: Estimate
    tasks: dict[str, Estimate] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, Estimate]:
        """All samples, and every task."""
        return {"all samples": self.change} | self.tasks

    @property
    def worst(self) -> tuple[str, Estimate]:
        """Where the interval reaches highest."""
        return max((self.tasks or self.parts).items(), key=lambda item: item[1].high)


@dataclass(frozen=True, kw_only=True)
class SlotResult:
    """What was found about one slot.

    Attributes:
        slot: The slot.
        verdict: `lossless`, `candidate`, `load-bearing` or `undecided`, by the effect of a swap where there is one.
        reason: Why, in one sentence.
        effects: One per replacement.
        as_is: Whether this checkpoint can do without the slot as it is, by the effect of masking it: `"yes"`, `"no"`,
            `"unclear"`; None where masking was not tried.
        action_change: Root mean square change of the actions under the first replacement, relative to their own spread;
            None if not asked.
    """

    slot: Slot
    verdict: Verdict
    reason: str
    effects: tuple[Effect, ...]
    as_is: str | None = None
    action_change: float | None = None

    def effect(self, how: How) -> Effect | None:
        """What one replacement did; None if it was not tried."""
        return next((effect for effect in self.effects if effect.how == how), None)


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """The slots of a model, each with its verdict.

    Attributes:
        results: One per slot.
        samples: Held-out samples.
        episodes: Their episodes.
        loss: Mean loss of the baseline.
        tolerance: The relative change in loss that the user would accept.
        confidence: Of the intervals.
        draws: Noise draws per sample.
    """

    results: tuple[SlotResult, ...]
    samples: int
    episodes: int
    loss: float
    tolerance: float
    confidence: float
    draws: int
    settings: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> SlotResult:
        return next(result for result in self.results if result.slot.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; an end of an interval that nothing bounds is None."""
        return _bounded(asdict(self))


def _bounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _bounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_bounded(each) for each in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def ablate(
    subject: Ablatable,
    *,
    tolerance: float = 0.01,
    draws: int = 2,
    replacements: Sequence[How] = ("swap", "mask"),
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    progress: Callable[[str], Any] | None = None,
) -> Ablation:
    """Say of each slot what it costs and what is lost without it.

    A slot is a *candidate* only if the whole interval of its change lies below the tolerance, for all samples and for
    every task alone; *load-bearing* if an interval lies above it; anything between is *undecided*. *Lossless* are only
    slots that are masked everywhere, and that is checked: nothing may change. Swapping decides where it was tried,
    masking otherwise.

    Args:
        subject: The model and the samples.
        tolerance: Relative change in loss that is acceptable, e.g. 0.01.
        draws: Noise draws per sample; more make the difference less noisy.
        replacements: What is put in a view's place.
        confidence: Of the intervals.
        resamples: Bootstrap resamples of episodes.
        seed: Of the resampling.
        progress: Told what runs next.

    Raises:
        PadlessError: When the callback is not paired (the baseline run twice gives two results) or returns nonsense, or
            the mean loss is not above 0, so that changes have nothing to be relative to.
        ViolationError: When a slot that is masked everywhere changes the loss: the model looks at what it must not see.

    Example:
        >>> episodes = np.repeat(np.arange(40), 5)
        >>> noise = np.random.default_rng(0).normal(size=200)
        >>> def loss(change):
        ...     return 1 + 0.1 * noise + {"wrist": 0.2 + 0.1 * noise, "top": 0.0001 * noise}.get(change.slot, 0)
        >>> slots = [Slot(name=name, kind="real", tokens=256) for name in ("wrist", "top")]
        >>> found = ablate(Ablatable(slots=slots, loss=loss, episodes=episodes))
        >>> found["wrist"].verdict, found["top"].verdict
        ('load-bearing', 'candidate')
    """
    if not tolerance > 0 or draws < 1 or not replacements or not 0.5 < confidence < 1:
        raise PadlessError(
            f"tolerance={tolerance} must be above 0, draws={draws} at least 1, confidence={confidence} between 0.5 and "
            f"1, and replacements={tuple(replacements)} not empty"
        )
    if resamples < 1 or seed < 0:
        raise PadlessError(f"resamples={resamples} must be at least 1, and seed={seed} at least 0")
    run = _Runner(subject, draws, progress or (lambda _: None))
    base = run.losses(None, "mask")
    if not base.mean() > 0:
        raise PadlessError(
            f"the mean loss is {base.mean():.3g}: changes are relative to it, so it must be above 0, and below 0 a "
            "loss that rises would look like one that falls; return one that is (an error, or a likelihood's loss over "
            "its lowest value)"
        )
    options = {"confidence": confidence, "resamples": resamples, "seed": seed}
    results = []
    for slot in subject.slots:
        effects = tuple(_effect(run, slot, how, base, **options) for how in replacements)
        results.append(_result(slot, effects, tolerance, run.action_change(slot.name, replacements[0])))
    return Ablation(
        results=tuple(results),
        samples=len(run.episodes),
        episodes=len(np.unique(run.episodes)),
        loss=float(base.mean()),
        tolerance=tolerance,
        confidence=confidence,
        draws=draws,
        settings={"replacements": tuple(replacements), "resamples": resamples, "seed": seed},
    )


class _Runner:
    """Calls the callbacks, and checks what comes back."""

    def __init__(self, subject: Ablatable, draws: int, progress: Callable[[str], Any]):
        self.subject, self.draws, self.progress = subject, draws, progress
        self.episodes = np.asarray(subject.episodes)
        self.tasks = None if subject.tasks is None else np.asarray(subject.tasks)
        if self.episodes.ndim != 1 or len(self.episodes) == 0:
            raise PadlessError(f"episodes must be one number per sample, not of shape {self.episodes.shape}")
        if self.tasks is not None and self.tasks.shape != self.episodes.shape:
            raise PadlessError(f"{len(self.tasks)} tasks for {len(self.episodes)} samples")
        once, again = (self._loss(Change(slot=None)) for _ in range(2))
        if not np.array_equal(once, again):
            raise PadlessError(
                f"the baseline run twice with draw 0 gives two results ({np.abs(once - again).max():.1e} apart): "
                "differences would measure noise; fix noise and time steps per draw, and switch dropout and image "
                "augmentation off"
            )

    def losses(self, slot: str | None, how: How) -> np.ndarray:
        """float[N], mean over draws."""
        self.progress("the model as it is" if slot is None else f"{how} {slot}")
        return np.mean([self._loss(Change(slot=slot, how=how, draw=draw)) for draw in range(self.draws)], axis=0)

    def action_change(self, slot: str, how: How) -> float | None:
        if self.subject.actions is None:
            return None
        before, after = (
            np.asarray(self.subject.actions(Change(slot=name, how=how)), dtype=np.float64) for name in (None, slot)
        )
        spread = before.std()
        return float(np.sqrt(np.square(after - before).mean()) / spread) if spread else 0.0

    def _loss(self, change: Change) -> np.ndarray:
        try:
            found = np.asarray(self.subject.loss(change), dtype=np.float64)
        except PadlessError:
            raise
        except Exception as error:
            raise PadlessError(f"loss({change}) fails with {type(error).__name__}: {error}") from error
        if found.shape != self.episodes.shape or not np.isfinite(found).all():
            raise PadlessError(
                f"loss({change}) gave shape {found.shape}, finite: {bool(np.isfinite(found).all())}; expected one "
                f"finite loss for each of {len(self.episodes)} samples"
            )
        return found


def _effect(run: _Runner, slot: Slot, how: How, base: np.ndarray, **options: Any) -> Effect:
    difference = (run.losses(slot.name, how) - base) / base.mean()
    if slot.kind == "masked everywhere" and difference.any():
        raise ViolationError(
            f"slot {slot.name!r} is masked in every sample, and to {how} it moves the loss by up to "
            f"{np.abs(difference).max():.1e}: the model attends to masked tokens, or the callback changes more than it"
        )
    tasks = {}
    if run.tasks is not None and len(np.unique(run.tasks)) > 1:
        tasks = by_task(difference, run.episodes, run.tasks, **options)
    return Effect(how=how, change=bootstrap(difference, run.episodes, **options), tasks=tasks)


def _result(slot: Slot, effects: tuple[Effect, ...], tolerance: float, acts: float | None) -> SlotResult:
    of = {effect.how: effect for effect in effects}
    as_is = {"candidate": "yes", "load-bearing": "no", "undecided": "unclear"}
    if slot.kind == "masked everywhere":
        verdict, reason = "lossless", "no sample attends to it, and nothing changed"
        without = "yes"
    else:
        verdict, reason = _judge(of.get("swap") or of["mask"], tolerance)
        without = as_is[_judge(of["mask"], tolerance)[0]] if "mask" in of else None
        if verdict == "candidate" and without != "yes":
            reason += "; this checkpoint was trained with it and may need it until then"
    return SlotResult(slot=slot, verdict=verdict, reason=reason, effects=effects, as_is=without, action_change=acts)


def _judge(effect: Effect, tolerance: float) -> tuple[Verdict, str]:
    how, parts = effect.how, effect.parts
    for name, found in parts.items():
        if found.low > tolerance and found.episodes >= FEWEST_EPISODES:
            return "load-bearing", f"{how}: {_shown(found)} on {name}, all of it above {tolerance:+.1%}"
    name, few = min(parts.items(), key=lambda part: part[1].episodes)
    if few.episodes < FEWEST_EPISODES:
        return "undecided", f"{name}: {few.episodes} episodes, and fewer than {FEWEST_EPISODES} decide nothing"
    name, found = max(parts.items(), key=lambda part: part[1].high)
    if found.high >= tolerance:
        return "undecided", f"{how}: {_shown(found)} on {name} includes the tolerance {tolerance:+.1%}"
    return "candidate", f"{how}: every interval is below {tolerance:+.1%}; train without it, then compare rollouts"


def _shown(found: Estimate) -> str:
    return f"{found.low:+.2%} to {found.high:+.2%}"
