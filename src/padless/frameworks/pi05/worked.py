"""A policy small enough to train in seconds, and what `padless ablate` says of its cameras.

    padless ablate padless.frameworks.pi05.worked:small_policy

Four slots, of which the policy needs one: `base` shows the light; `wrist` shows noise; `ceiling` always shows the same
black picture, attended to, as pi0-FAST's missing cameras are; `right_wrist` is masked, as pi0.5's are.
"""

from typing import Any

import numpy as np
import torch

from padless.frameworks.pi05.ablating import noise_for, policy_ablation
from padless.frameworks.pi05.generated import Shows, generate, take
from padless.frameworks.pi05.installing import padding_free
from padless.frameworks.pi05.small import SmallConfig, SmallPolicy
from padless.measure.ablation import Ablatable

CAMERAS = ("base", "wrist", "ceiling", "right_wrist")
SHOWS: tuple[Shows, ...] = ("light", "noise", "blank", "nothing")


def small_policy(*, steps: int = 200, held_out: int = 60) -> Ablatable:
    """Train a `SmallPolicy` on generated episodes, padding-free, and hand over episodes it has not seen."""
    config = SmallConfig(cameras=CAMERAS)
    policy = SmallPolicy(config)
    padding_free(policy)
    train(policy, generate(config, episodes=400, shows=SHOWS), steps=steps)
    unseen = generate(config, episodes=held_out, shows=SHOWS, seed=1)
    return policy_ablation(policy, unseen, cameras=CAMERAS, cost=config.cost)


def train(
    policy: SmallPolicy, samples: dict[str, Any], *, steps: int, batch: int = 32, rate: float = 3e-3, seed: int = 0
) -> list[float]:
    """Plain Adam on random batches; the loss of every step. The same seed takes the same samples and noise."""
    rng = np.random.default_rng(seed)
    optimizer = torch.optim.Adam(policy.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rate, total_steps=steps)
    losses = []
    for step in range(steps):
        part = take(samples, rng.choice(len(samples["tokens"]), batch, replace=False))
        state = part["state"] if policy.config.state else None
        inputs = {name: part[name] for name in ("images", "img_masks", "tokens", "masks", "actions")}
        loss = policy(**inputs, **noise_for(part, step), state=state).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return losses
