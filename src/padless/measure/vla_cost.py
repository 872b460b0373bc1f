"""What a step of a pi0-type policy costs, from its sizes: matrix multiplications, counted per part.

Forward only; a backward pass costs twice that in every part that is trained, so a step saves the same fractions.
Left out, because they are below 1 %: norms, activations, the time MLP, embeddings looked up.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from padless.errors import PadlessError

REPORTED_SAVING = 0.3956
"""Of a step of pi0.5 on LIBERO, with dynamic prompts and one view less: 4.71 s to 2.85 s (Guo et al., 2603.11101)."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Layers of one width.

    Attributes:
        layers: How many.
        width: Of a token.
        hidden: Of the MLP.
        heads: Query heads.
        kv_heads: Key and value heads.
        head_size: Of one head.
        gated: Whether the MLP has three matrices (Gemma) instead of two (SigLIP).
    """

    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    gated: bool

    def __post_init__(self) -> None:
        sizes = (self.layers, self.width, self.hidden, self.heads, self.kv_heads, self.head_size)
        if min(sizes) < 1:
            raise PadlessError(f"sizes of layers must be at least 1: {self}")

    @property
    def per_token(self) -> float:
        """FLOPs of one token outside attention, in all layers."""
        projections = self.width * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        return 2.0 * self.layers * (projections + (3 if self.gated else 2) * self.width * self.hidden)

    def attention(self, pairs: float) -> float:
        """FLOPs of scores and values for so many (query, key) pairs."""
        return 4.0 * self.layers * self.heads * self.head_size * pairs


@dataclass(frozen=True, kw_only=True)
class Flops:
    """Forward FLOPs of one sample.

    Attributes:
        tower: The vision tower and its projection.
        linear: Projections and MLPs of both experts.
        attention: Scores and values of both experts.
    """

    tower: float
    linear: float
    attention: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.tower + self.linear + self.attention

    def saving(self, before: "Flops") -> float:
        """How much less than `before`, 0 to 1."""
        return 1 - self.total / before.total


@dataclass(frozen=True, kw_only=True)
class PolicyCost:
    """Sizes of a pi0-type policy.

    Attributes:
        tower: The vision tower.
        view_tokens: Tokens of one view.
        patch: Numbers in one patch.
        language: The expert that runs views and prompt.
        action: The expert that runs the suffix; heads as `language`.

    Example:
        >>> shipped = PI05_COST.flops(views=3, prompt=200, suffix=10)
        >>> f"{shipped.total / 1e12:.2f} TFLOP, {shipped.attention / shipped.total:.1%} of it attention"
        '4.64 TFLOP, 3.0% of it attention'
        >>> f"{PI05_COST.flops(views=2, prompt=60, suffix=10).saving(shipped):.1%}"
        '40.5%'
    """

    tower: Stack
    view_tokens: int
    patch: int
    language: Stack
    action: Stack

    def flops(
        self, *, views: float, prompt: float, suffix: float, encoded: float | None = None, mask: bool = True
    ) -> Flops:
        """FLOPs of one sample.

        Args:
            views: Views that take tokens.
            prompt: Prompt tokens, padding included where it is computed.
            suffix: State and action tokens.
            encoded: Views that go through the tower; None: as many as take tokens. Transformers' PI0 encodes more.
            mask: Whether attention scores the whole square, as with a dense mask; otherwise only what blocks may see.
        """
        of_view = self.tower.per_token + 2.0 * self.tower.width * (self.patch + self.language.width)
        per_view = self.view_tokens * of_view + self.tower.attention(self.view_tokens**2)
        prefix = views * self.view_tokens + prompt
        pairs = (prefix + suffix) ** 2 if mask else prefix**2 + suffix * (prefix + suffix)
        return Flops(
            tower=(views if encoded is None else encoded) * per_view,
            linear=prefix * self.language.per_token + suffix * self.action.per_token,
            attention=self.language.attention(pairs),
        )


PI05_COST = PolicyCost(
    tower=Stack(layers=27, width=1152, hidden=4304, heads=16, kv_heads=16, head_size=72, gated=False),
    view_tokens=256,
    patch=3 * 14 * 14,
    language=Stack(layers=18, width=2048, hidden=16384, heads=8, kv_heads=1, head_size=256, gated=True),
    action=Stack(layers=18, width=1024, hidden=4096, heads=8, kv_heads=1, head_size=256, gated=True),
)
"""SigLIP So400m at 224 pixels, Gemma 2B and a 300M expert: pi0, pi0.5 (openpi `models/gemma.py`, `siglip.py`)."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of the case study.

    Attributes:
        change: What was changed.
        tokens: Slots of a sample after it.
        flops: Their cost.
        saving: Of the total, against the policy as shipped.
    """

    change: str
    tokens: int
    flops: Flops
    saving: float


def case_study(
    cost: PolicyCost = PI05_COST,
    *,
    cameras: int = 3,
    real_views: int = 2,
    prompt_slots: int = 200,
    prompts: Sequence[int] = (60, 20),
    suffix: int = 10,
) -> list[Case]:
    """What leaving out a masked camera slot, and padding prompts to the batch, saves of a step.

    The defaults are openpi's `pi05_libero`: three slots of which LIBERO fills two, prompts in 200 slots, 10 actions.
    How long its prompts are is an assumption: no count is published, so there is a line for each of `prompts`.

    Args:
        cost: Sizes.
        cameras: Slots.
        real_views: Slots with a picture.
        prompt_slots: What prompts are padded to.
        prompts: Real lengths to count with.
        suffix: State and action tokens.

    Returns:
        The policy as shipped, each change alone, both, and both with attention over real blocks only.

    Example:
        >>> for case in case_study(prompts=(60,)):
        ...     print(f"{case.change:45} {case.tokens:5} {case.flops.total / 1e12:.2f} {case.saving:6.1%}")
        as shipped                                      978 4.64   0.0%
        prompts of 60 padded to the batch               838 4.05  12.8%
        masked slot dropped                             722 3.35  28.0%
        both, prompts of 60                             582 2.76  40.5%
        both, prompts of 60, no mask tensor             582 2.76  40.5%
    """
    if not 0 < real_views <= cameras or any(not 0 < prompt <= prompt_slots for prompt in prompts):
        raise PadlessError(
            f"{real_views} real views of {cameras}, prompts {tuple(prompts)} of {prompt_slots} slots: more than exist"
        )
    shipped = cost.flops(views=cameras, prompt=prompt_slots, suffix=suffix)

    def case(change: str, views: int, prompt: int, *, mask: bool = True) -> Case:
        flops = cost.flops(views=views, prompt=prompt, suffix=suffix, mask=mask)
        tokens = views * cost.view_tokens + prompt + suffix
        return Case(change=change, tokens=tokens, flops=flops, saving=flops.saving(shipped))

    cases = [case("as shipped", cameras, prompt_slots)]
    cases += [case(f"prompts of {prompt} padded to the batch", cameras, prompt) for prompt in prompts]
    cases.append(case("masked slot dropped", real_views, prompt_slots))
    cases += [case(f"both, prompts of {prompt}", real_views, prompt) for prompt in prompts]
    cases += [case(f"both, prompts of {prompt}, no mask tensor", real_views, prompt, mask=False) for prompt in prompts]
    return cases
