"""`padless ablate` for pi0-type policies: masks and swaps camera slots of held-out samples."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from padless.errors import PadlessError
from padless.measure.ablation import Ablatable, Change
from padless.measure.ablation_slots import Slot
from padless.measure.vla_cost import PolicyCost
from padless.rows.tensors import host

INPUTS = ("images", "img_masks", "tokens", "masks", "actions", "state")


def policy_ablation(
    policy: Any,
    samples: dict[str, Any],
    *,
    cameras: Sequence[str],
    cost: PolicyCost | None = None,
    run: Callable[[dict[str, Any]], torch.Tensor] | None = None,
    batch: int = 32,
) -> Ablatable:
    """Make a policy and held-out samples ready for `padless.measure.ablation.ablate`.

    Args:
        policy: LeRobot's `policy.model`, openpi's `PI0Pytorch`, a `SmallPolicy`. It is put into evaluation mode for
            every call.
        samples: `images` and `img_masks` (a list per slot), `tokens`, `masks`, `actions`, perhaps `state`, each `[N,
            ...]`; `episodes` and perhaps `tasks`, `[N]`.
        cameras: Names of the slots, in the order of `images`.
        cost: Sizes, for each slot's share of a forward pass.
        run: `run(inputs)` gives the losses `[B, H, A]`; None: `policy(**inputs)`, as LeRobot's pi0.5 takes them.
        batch: Samples per call.

    Returns:
        What `ablate` takes. Noise and time steps depend on the draw and on nothing else.
    """
    if len(cameras) != len(samples["images"]):
        raise PadlessError(f"{len(cameras)} camera names for {len(samples['images'])} slots")
    episodes = np.asarray(samples["episodes"])
    slots = _slots(policy, samples, cameras, cost)
    elsewhere = _from_another_episode(episodes)

    def loss(change: Change) -> np.ndarray:
        inputs = {name: samples[name] for name in INPUTS if samples.get(name) is not None}
        inputs |= noise_for(samples, change.draw)
        if change.slot is not None:
            inputs |= _changed(inputs, cameras.index(change.slot), change, elsewhere)
        return _losses(policy, run or (lambda given: policy(**given)), inputs, batch)

    return Ablatable(slots=slots, loss=loss, episodes=episodes, tasks=samples.get("tasks"))


def noise_for(samples: dict[str, Any], draw: int) -> dict[str, torch.Tensor]:
    """Noise and time steps of a draw: the same number gives the same for the same samples, whatever else happens."""
    actions = samples["actions"]
    make = torch.Generator().manual_seed(draw)
    return {
        "noise": torch.randn(actions.shape, generator=make, dtype=torch.float64).to(actions),
        "time": torch.rand(len(actions), generator=make, dtype=torch.float64).to(actions),
    }


def _slots(policy: Any, samples: dict[str, Any], cameras: Sequence[str], cost: PolicyCost | None) -> list[Slot]:
    with torch.no_grad():
        tokens = policy.paligemma_with_expert.embed_image(samples["images"][0][:1]).shape[1]
    prompt = float(host(samples["masks"]).sum(axis=1).mean())
    suffix = samples["actions"].shape[1]
    share = None
    if cost is not None:
        whole = cost.flops(views=len(cameras), prompt=prompt, suffix=suffix)
        share = cost.flops(views=len(cameras) - 1, prompt=prompt, suffix=suffix).saving(whole)
    return [
        Slot.of(name, tokens=tokens, masks=mask, images=image, compute=share)
        for name, mask, image in zip(cameras, samples["img_masks"], samples["images"], strict=True)
    ]


def _changed(inputs: dict[str, Any], slot: int, change: Change, elsewhere: np.ndarray) -> dict[str, Any]:
    images, masks = list(inputs["images"]), list(inputs["img_masks"])
    if change.how == "mask":
        masks[slot] = torch.zeros_like(masks[slot])
    else:
        other = torch.from_numpy(elsewhere)
        images[slot], masks[slot] = images[slot][other], masks[slot][other]
    return {"images": images, "img_masks": masks}


def _from_another_episode(episodes: np.ndarray) -> np.ndarray:
    """For each sample a random one of another episode: samples ordered by episode, moved on by the longest one.

    Inside an episode the order is random, so that a picture does not come from the same moment of the other episode.
    """
    shuffled = np.random.default_rng(0).permutation(len(episodes))
    order = shuffled[np.argsort(episodes[shuffled], kind="stable")]
    longest = int(np.unique(episodes, return_counts=True)[1].max())
    other = np.empty(len(order), dtype=np.int64)
    other[order] = np.roll(order, -longest)
    if (episodes[other] == episodes).any():
        raise PadlessError(
            f"one episode holds {longest} of {len(episodes)} samples: views cannot be swapped between episodes"
        )
    return other


def _losses(
    policy: Any, call: Callable[[dict[str, Any]], torch.Tensor], inputs: dict[str, Any], batch: int
) -> np.ndarray:
    training = policy.training
    policy.eval()
    parts = []
    try:
        with torch.no_grad():
            for start in range(0, len(inputs["tokens"]), batch):
                part = slice(start, start + batch)
                given = {k: [x[part] for x in v] if isinstance(v, list) else v[part] for k, v in inputs.items()}
                parts.append(call(given).flatten(1).mean(dim=1))
    finally:
        policy.train(training)
    return torch.cat(parts).double().cpu().numpy()
