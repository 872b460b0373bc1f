"""Vision-language and vision-language-action models: what packing and varlen calls change, section by section.

    python benchmarks/vla.py [SECTION ...] [--device cuda] [--repeats 5]

Sections: `tower` times a vision tower of Qwen2.5-VL and Qwen3-VL, forward and backward, with Transformers' own loop
over windows and frames and with one varlen call per layer. `training` times the gradients of a small vision-language
model on padded batches and on packed rows of the same samples.
"""

import argparse
import copy
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

Run = Callable[[], Any]


def medians(ways: dict[str, Run], repeats: int, device: str) -> dict[str, float]:
    """Milliseconds of each way; the ways take turns, so that a busy machine is busy for all of them."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for run in ways.values():
        run()
    for _ in range(repeats):
        for name, run in ways.items():
            _wait(device)
            start = time.perf_counter()
            run()
            _wait(device)
            taken[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in taken.items()}


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    print("| " + " | ".join(head) + " |")
    print("|---" * len(head) + "|")
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)
    print()


# The vision tower -----------------------------------------------------------------------------------------------------

# (name, width, heads, layers): heads of 80 as in Qwen2.5-VL's tower, which is the last.
TOWERS = {
    "cpu": (("tiny", 32, 1, 4), ("small", 160, 2, 4)),
    "cuda": (("small", 160, 2, 4), ("as published", 1280, 16, 32)),
}
# (name, images, least and most patches per side, halved): thumbnails, mixed photos.
MIXES = {
    "cpu": (("thumbnails", 256, 1, 4), ("mixed sizes", 24, 2, 17)),
    "cuda": (("thumbnails", 256, 1, 4), ("mixed sizes", 24, 2, 17), ("mixed sizes, many", 96, 2, 33)),
}


def tower(device: str, repeats: int) -> None:
    """One varlen call per layer against Transformers' loop over frames and windows (its path for all but flash)."""
    from padless.frameworks.transformers import register
    from padless.frameworks.transformers.towers import TOWER_NAME
    from padless.rows import MediaLayout
    from padless.rows.media import tower_layout

    register()
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    rng = np.random.default_rng(0)
    rows = []
    for kind in ("qwen2_5_vl", "qwen3_vl"):
        for size, width, heads, layers in TOWERS[device]:
            looped = make_tower(kind, width, heads, layers).to(device, dtype)
            once = copy.deepcopy(looped)
            once.config._attn_implementation = TOWER_NAME
            layout = MediaLayout(image_token=0, window=4 if kind == "qwen2_5_vl" else None)
            for mix, count, least, most in MIXES[device]:
                grids = np.array([[1, *(2 * rng.integers(least, most, 2))] for _ in range(count)])
                known = {key: torch.from_numpy(v).to(device) for key, v in tower_layout(grids, layout).items()}
                patches = int(grids.prod(axis=1).sum())
                pixels = torch.randn(patches, 3 * 2 * 14 * 14, device=device, dtype=dtype)
                thw = torch.from_numpy(grids).to(device)
                ways = {
                    "loop": functools.partial(tower_step, looped, pixels, thw, {}),
                    "padless": functools.partial(tower_step, once, pixels, thw, known),
                }
                off = float((ways["loop"]() - ways["padless"]()).abs().max())
                ms = medians(ways, repeats, device)
                windows = len(known.get("cu_window_seqlens", known["cu_seqlens"])) - 1
                ratio = ms["loop"] / ms["padless"]
                cells = [f"{ms[way]:.1f}" for way in ways]
                rows.append([kind, size, mix, f"{patches:,}", windows, *cells, f"{ratio:.2f}", f"{off:.0e}"])
    print(f"Vision tower, forward and backward, {device}, {str(dtype).removeprefix('torch.')}\n")
    table(
        [
            "model",
            "size",
            "images",
            "patches",
            "segments per layer",
            "loop, ms",
            "padless, ms",
            "loop / padless",
            "off",
        ],
        rows,
    )


def make_tower(kind: str, width: int, heads: int, layers: int) -> Any:
    from transformers import AutoConfig, AutoModel

    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_heads": heads, "depth": layers}
    own = {"fullatt_block_indexes": list(range(layers // 4 - 1, layers, layers // 4))}
    if kind == "qwen3_vl":
        own = {"deepstack_visual_indexes": [layers // 2]}
    vision = {**sizes, **own, "patch_size": 14, "out_hidden_size": 128}
    torch.manual_seed(0)
    model: Any = AutoModel.from_config(
        AutoConfig.for_model(kind, vision_config=vision, text_config=_no_text()), attn_implementation="sdpa"
    )
    return model.visual


def _no_text() -> dict[str, Any]:
    """A text model of almost nothing: only the tower is wanted."""
    rotary = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    sizes = {
        "vocab_size": 8,
        "hidden_size": 64,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return {**sizes, "num_attention_heads": 4, "num_key_value_heads": 4, "rope_parameters": rotary}


def tower_step(model: Any, pixels: torch.Tensor, grids: torch.Tensor, known: dict[str, torch.Tensor]) -> torch.Tensor:
    model.zero_grad()
    found = model(pixels, grid_thw=grids, **known).pooler_output
    found.float().square().mean().backward()
    return found.detach()


SECTIONS: dict[str, Callable[[str, int], None]] = {"tower": tower}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"any of {', '.join(SECTIONS)}; all when none is given")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    for name in arguments.sections or SECTIONS:
        SECTIONS[name](arguments.device, arguments.repeats)


if __name__ == "__main__":
    main()
