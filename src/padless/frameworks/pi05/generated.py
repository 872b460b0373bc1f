"""Generated episodes for the small policy: pictures that hold the answer in one place, and prompts that ask for it.

A light stands somewhere. Actions are steps towards it, and the last number of an action depends on the instruction.
What each camera shows is chosen, so what each slot is worth to a policy is known beforehand.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch

from padless.errors import PadlessError
from padless.frameworks.pi05.small import SmallConfig

INSTRUCTIONS = (
    "pick up the block",
    "put the bowl on the plate",
    "open the drawer",
    "push the red block to the left of the blue one",
    "turn on the stove and put the pot on it",
    "close the top drawer of the cabinet and put the cup on top of it",
)
"""Made up, in the manner of LIBERO; `generate` takes any others."""


REACH = 3.0
"""Actions are this much larger than distances in a picture, so that a loss shows whether a policy looks."""

Shows = Literal["light", "noise", "blank", "nothing"]
"""What a camera shows: the light; noise; the same black picture always, attended to; nothing, a masked slot."""


def prompt_tokens(text: str, vocabulary: int) -> list[int]:
    """A tokenizer for tests: one id per word, the same for the same word everywhere. 0 stays free for padding."""
    return [1 + sum(ord(c) * 31**i for i, c in enumerate(word)) % (vocabulary - 1) for word in text.split()]


def generate(
    config: SmallConfig,
    *,
    episodes: int,
    shows: Sequence[Shows] = ("light", "light", "nothing"),
    frames: int = 4,
    instructions: Sequence[str] = INSTRUCTIONS,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:
    """Samples of `SmallPolicy.forward`, and which episode and task each is from.

    Args:
        config: Of the policy.
        episodes: How many, each with one instruction and one place.
        shows: What each camera shows, in the order of `config.cameras`.
        frames: Samples per episode: the arm comes closer, the view changes a little.
        instructions: Tasks, taken in turn; longer ones than `config.prompt_slots` words are an error.
        seed: Of everything.
        dtype: Of pictures and actions.

    Returns:
        `images`, `img_masks`, `tokens`, `masks`, `actions`, `state`, and `episodes`, `tasks` (numpy, `[N]`).
    """
    unknown = set(shows) - set(get_args(Shows))
    if unknown or len(shows) != len(config.cameras):
        raise PadlessError(f"shows={tuple(shows)} must say one of {get_args(Shows)} for each of {config.cameras}")
    rng = np.random.default_rng(seed)
    count = episodes * frames
    episode = np.repeat(np.arange(episodes), frames)
    place = np.repeat(rng.uniform(-1, 1, (episodes, 2)), frames, axis=0)
    arm = np.tile(np.linspace(0, 0.5, frames), episodes)[:, None] * place
    task = (episode % len(instructions)).tolist()
    prompts = [prompt_tokens(instructions[t], config.vocabulary) for t in task]
    longest = max(map(len, prompts))
    if longest > config.prompt_slots:
        raise PadlessError(
            f"an instruction of {longest} words would be cut: the prompt has {config.prompt_slots} slots"
        )
    tokens = np.zeros((count, config.prompt_slots), dtype=np.int64)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in prompts])
    state = np.zeros((count, config.action_size))
    state[:, :2] = arm
    goal = np.zeros((count, 1, config.action_size))
    goal[:, 0, :2] = REACH * (place - arm)
    goal[:, 0, -1] = np.sin(task)
    steps = np.linspace(1 / config.actions, 1, config.actions)[None, :, None]
    images = [_picture(config, what, place - arm * (camera > 0), rng) for camera, what in enumerate(shows)]
    return {
        "images": [torch.from_numpy(image).to(dtype) for image in images],
        "img_masks": [torch.full((count,), what != "nothing") for what in shows],
        "tokens": torch.from_numpy(tokens),
        "masks": torch.from_numpy(np.arange(config.prompt_slots) < lengths[:, None]),
        "actions": torch.from_numpy(goal * steps).to(dtype),
        "state": torch.from_numpy(state).to(dtype),
        "episodes": episode,
        "tasks": np.array([instructions[t] for t in task]),
    }


def take(samples: dict[str, Any], index: Any) -> dict[str, Any]:
    """Some of the samples, by number."""
    rows = torch.as_tensor(np.asarray(index))

    def part(value: Any) -> Any:
        if isinstance(value, list):
            return [part(item) for item in value]
        return value[rows] if isinstance(value, torch.Tensor) else value[np.asarray(index)]

    return {name: part(value) for name, value in samples.items()}


def _picture(config: SmallConfig, what: Shows, place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A light whose colours say where it stands, `place` in [-1, 1], over a little noise; or another thing."""
    shape = (len(place), 3, config.image, config.image)
    if what in ("blank", "nothing"):
        return np.full(shape, -1.0)
    noise = rng.normal(size=shape)
    if what == "noise":
        return noise
    colours = np.concatenate([place, place.prod(axis=1, keepdims=True)], axis=1)
    return colours[:, :, None, None] + 0.3 * noise
