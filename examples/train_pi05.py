"""pi0.5: `python examples/train_pi05.py [--steps 100] [--report out.md]`: one small policy, padded and padding-free.

Pictures are generated; instructions are LIBERO's where the file is at hand (`--instructions libero_instructions.json`).
The one changed line is marked. Before training it proves on a batch that nothing else changed; afterwards it says what
each camera slot is worth.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from padless.frameworks.pi05 import PolicyLayout, padding_free
from padless.frameworks.pi05.ablating import noise_for, policy_ablation
from padless.frameworks.pi05.generated import INSTRUCTIONS, Shows, generate, take
from padless.frameworks.pi05.proving import prove
from padless.frameworks.pi05.small import SmallConfig, SmallPolicy
from padless.frameworks.pi05.worked import train
from padless.measure.ablation import ablate

CAMERAS = ("base", "left_wrist", "right_wrist")
SHOWS: tuple[Shows, ...] = ("light", "noise", "nothing")  # as in LIBERO, the third slot is masked
LIBERO = Path(__file__).resolve().parents[2] / "shared" / "data" / "text" / "libero_instructions.json"


def instructions_of(path: Path, most: int = 6) -> tuple[str, ...]:
    """Instructions from LIBERO's list, short and long; made-up ones where there is no list."""
    if not path.is_file():
        return INSTRUCTIONS
    found = sorted(
        {task["instruction"] for task in json.loads(path.read_text())["tasks"]}, key=lambda t: len(t.split())
    )
    return tuple(found[i * (len(found) - 1) // (most - 1)] for i in range(most))


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--held-out", type=int, default=60, help="episodes to judge cameras with")
    parser.add_argument("--instructions", type=Path, default=LIBERO)
    parser.add_argument("--report", type=Path, help="write what came out as Markdown")
    given = parser.parse_args(arguments)
    instructions = instructions_of(given.instructions)
    config = SmallConfig(cameras=CAMERAS, prompt_slots=48, image=48, width=96, hidden=384)
    data = generate(config, episodes=given.episodes, shows=SHOWS, instructions=instructions)
    held_out = generate(config, episodes=given.held_out, shows=SHOWS, instructions=instructions, seed=1)

    batch = take(held_out, range(8))
    inputs = {name: batch[name] for name in ("images", "img_masks", "tokens", "masks", "actions")}
    proof = prove(SmallPolicy(config), inputs | noise_for(batch, 0))

    losses, seconds, policies = {}, {}, {}
    for way in ("padded", "padding-free"):
        policy = policies[way] = SmallPolicy(config)
        if way == "padding-free":
            padding_free(policy)  # the one line that changes
        started = time.process_time()
        losses[way] = train(policy, data, steps=given.steps)
        seconds[way] = time.process_time() - started
    apart = max(abs(a - b) for a, b in zip(losses["padded"], losses["padding-free"], strict=True))

    ablation = ablate(policy_ablation(policies["padding-free"], held_out, cameras=CAMERAS, cost=config.cost))
    lines = report(config.layout, proof, losses, seconds, apart, ablation)
    print("\n".join(lines))
    if given.report is not None:
        given.report.write_text("\n".join(lines) + "\n")
    return {"proof": proof, "losses": losses, "apart": apart, "ablation": ablation}


def report(
    layout: PolicyLayout, proof: Any, losses: dict[str, Any], seconds: dict[str, float], apart: float, ablation: Any
) -> list[str]:
    """Markdown."""
    rows = [
        f"| {way} | {losses[way][0]:.4f} | {losses[way][-1]:.4f} | {len(losses[way])} | {seconds[way]:.1f} |"
        for way in losses
    ]
    slots = [
        f"| {each.slot.name} | {each.slot.kind} | {each.slot.compute:.1%} | {each.verdict} | {each.reason} |"
        for each in ablation.results
    ]
    return [
        "# A small pi0.5, padded and padding-free",
        "",
        f"{len(layout.cameras)} cameras of {layout.tokens_per_view} tokens, prompts in {layout.prompt_slots} slots.",
        "",
        f"Before training: {proof}.",
        "",
        "| way | first loss | last loss | steps | CPU seconds |",
        "|---|---|---|---|---|",
        *rows,
        "",
        f"The losses of the two runs, step by step on the same samples and noise, are at most {apart:.1e} apart.",
        "",
        "| slot | holds | compute | verdict | why |",
        "|---|---|---|---|---|",
        *slots,
    ]


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
