"""How many tokens each part of a pi0-type policy takes: camera slots, prompt, state, actions."""

from dataclasses import dataclass

from padless.errors import PadlessError

SIGLIP_TOKENS = 256
"""Tokens of one view: SigLIP at 224 pixels with patches of 14, (224 / 14) ** 2."""


@dataclass(frozen=True, kw_only=True)
class PolicyLayout:
    """The slots of one padded sample: `[view 1 .. view C, prompt | state, actions]`.

    The part before the bar goes through the language model's weights, the part behind it through the action expert's;
    attention sees both. Ranks: views and prompt 0, state 1, actions the last; `attend iff rank[k] <= rank[q]`.

    Attributes:
        cameras: Slot names, in the order of the model.
        tokens_per_view: Tokens of one encoded view.
        prompt_slots: What prompts are padded to (`max_token_len` of openpi, `tokenizer_max_length` of LeRobot).
        state_tokens: 1 for pi0; 0 for pi0.5, whose state is text in the prompt.
        actions: Action tokens, the length of a chunk.

    Source:
        openpi `models/pi0.py`, `models/pi0_config.py`.

    Example:
        >>> PI05_LIBERO.slots, PI0.slots, PI05.slots
        (978, 867, 1018)
        >>> PI05_LIBERO.tokens(views=2, prompt=60)
        582
    """

    cameras: tuple[str, ...]
    prompt_slots: int
    actions: int
    state_tokens: int = 0
    tokens_per_view: int = SIGLIP_TOKENS

    def __post_init__(self) -> None:
        if not self.cameras or len(set(self.cameras)) < len(self.cameras):
            raise PadlessError(f"cameras={self.cameras} must be different names, at least one")
        for name, least in {"prompt_slots": 1, "actions": 1, "state_tokens": 0, "tokens_per_view": 1}.items():
            if getattr(self, name) < least:
                raise PadlessError(f"{name}={getattr(self, name)} must be at least {least}")

    @property
    def prefix_slots(self) -> int:
        """Slots before the bar."""
        return len(self.cameras) * self.tokens_per_view + self.prompt_slots

    @property
    def suffix_tokens(self) -> int:
        """Tokens behind the bar; none of them is padding."""
        return self.state_tokens + self.actions

    @property
    def slots(self) -> int:
        """Slots of a padded sample."""
        return self.prefix_slots + self.suffix_tokens

    def tokens(self, *, views: int, prompt: int) -> int:
        """Real tokens of a sample with `views` real views and a prompt of `prompt` tokens.

        Raises:
            PadlessError: When a sample cannot have so many.
        """
        if not 0 <= views <= len(self.cameras) or not 0 <= prompt <= self.prompt_slots:
            raise PadlessError(
                f"{views} views and {prompt} prompt tokens do not fit {len(self.cameras)} cameras and "
                f"{self.prompt_slots} prompt slots"
            )
        return views * self.tokens_per_view + prompt + self.suffix_tokens


OPENPI_CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")

PI0 = PolicyLayout(cameras=OPENPI_CAMERAS, prompt_slots=48, state_tokens=1, actions=50)
PI05 = PolicyLayout(cameras=OPENPI_CAMERAS, prompt_slots=200, actions=50)
PI05_LIBERO = PolicyLayout(cameras=OPENPI_CAMERAS, prompt_slots=200, actions=10)
