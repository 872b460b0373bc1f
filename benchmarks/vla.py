"""Vision-language and vision-language-action models: what packing and varlen calls change, section by section.

    python benchmarks/vla.py [SECTION ...] [--device cuda] [--repeats 5] [--cpu-time]

Sections: `tower` times a vision tower of Qwen2.5-VL and Qwen3-VL, forward and backward, with Transformers' own loop
over windows and frames and with one varlen call per layer. `training` times the gradients of a small vision-language
model on padded batches and on packed rows of the same samples. `policy` times a step of a small pi0.5 padded, trimmed
and padding-free; `cost` counts what pi0.5 on LIBERO saves.
"""

import argparse
import copy
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

Run = Callable[[], Any]
clock: Callable[[], float] = time.perf_counter


def medians(ways: dict[str, Run], repeats: int, device: str) -> dict[str, float]:
    """Milliseconds of each way; the ways take turns, so that a busy machine is busy for all of them."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for run in ways.values():
        run()
    for _ in range(repeats):
        for name, run in ways.items():
            _wait(device)
            start = clock()
            run()
            _wait(device)
            taken[name].append(1e3 * (clock() - start))
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
    "cuda": (("thumbnails", 256, 1, 4), ("mixed sizes", 24, 2, 17), ("photographs", 32, 8, 33)),
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
                alone = attention_ratio(known, patches, heads, width // heads, repeats, device, dtype)
                cells += [f"{ratio:.2f}", f"{alone:.2f}", f"{off:.0e}"]
                rows.append([kind, size, mix, f"{patches:,}", windows, *cells])
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
            "attention alone",
            "off",
        ],
        rows,
    )


def attention_ratio(
    known: dict[str, torch.Tensor], patches: int, heads: int, size: int, repeats: int, device: str, dtype: torch.dtype
) -> float:
    """Times of padless that the loop takes for one layer's attention, forward and backward, and nothing else."""
    from padless import varlen_attention
    from padless.attention import Segments

    offsets = known.get("cu_window_seqlens", known["cu_seqlens"]).tolist()
    lengths, segments = np.diff(offsets).tolist(), Segments.of(offsets)
    leaf = torch.randn(3, patches, heads, size, device=device, dtype=dtype, requires_grad=True)

    def loop() -> None:
        parts = zip(*[x.transpose(0, 1)[None].split(lengths, dim=2) for x in leaf.unbind()], strict=True)
        attend = torch.nn.functional.scaled_dot_product_attention
        torch.cat([attend(*part).transpose(1, 2) for part in parts], dim=1).sum().backward()

    def once() -> None:
        varlen_attention(*leaf.unbind(), segments, causal=False).sum().backward()

    ms = medians({"loop": loop, "padless": once}, repeats, device)
    return ms["loop"] / ms["padless"]


def make_tower(kind: str, width: int, heads: int, layers: int) -> Any:
    from transformers import AutoConfig, AutoModel

    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_heads": heads, "depth": layers}
    own = {"fullatt_block_indexes": list(range(7, layers, 8)) or [layers - 1]}  # every eighth, as published
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


# Packed multimodal training -------------------------------------------------------------------------------------------

TEXT = {"vocab_size": 2000, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4}
IMAGE_TOKEN, CAPACITY, ROWS = 1999, 1024, 8


def training(device: str, repeats: int) -> None:
    """Gradients of the same samples: padded batches as Transformers takes them, and packed rows."""
    from padless.frameworks.qwen_vl import layout_of
    from padless.frameworks.transformers import prepare
    from padless.training import MediaDataset

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    rows = []
    for kind in ("qwen2_5_vl", "qwen3_vl"):
        shipped = make_vlm(kind).to(device, dtype)
        ready = copy.deepcopy(shipped)
        prepare(ready)
        samples = make_samples()
        data = MediaDataset(samples, random_pixels, layout=layout_of(shipped), capacity=CAPACITY, patch_capacity=4096)
        packed = [_on(data[i], device, dtype) for i in range(len(data))]
        targets = sum(batch.num_targets for batch in packed)
        batches = [samples[at : at + ROWS] for at in range(0, len(samples), ROWS)]
        longest = max(len(each["input_ids"]) for each in samples)
        padded = {
            "padded": [padded_call(batch, None, device, dtype) for batch in batches],
            "padded to the longest": [padded_call(batch, longest, device, dtype) for batch in batches],
        }
        ways: dict[str, Run] = {
            name: functools.partial(padded_gradients, shipped, calls, targets) for name, calls in padded.items()
        }
        ways["padless"] = functools.partial(packed_gradients, ready, packed, targets)
        ways["tower"] = functools.partial(tower_gradients, shipped, padded["padded"])
        expected, found = ways["padded"](), ways["padless"]()
        off = float((found - expected).norm() / expected.norm())
        ms = medians(ways, repeats, device)
        real = sum(len(each["input_ids"]) for each in samples)
        for name, calls in padded.items():
            waste = 1 - real / sum(call["input_ids"].numel() for call in calls)
            # The tower has no padding in either way: only the rest of the step can become shorter.
            ideal = ms[name] / (ms["tower"] + (ms[name] - ms["tower"]) * (1 - waste))
            ratio = ms[name] / ms["padless"]
            cells = [f"{waste:.0%}", f"{ms[name]:.0f}", f"{ms['padless']:.0f}", f"{ms['tower']:.0f}"]
            rows.append([kind, name, *cells, f"{ratio:.2f}", f"{ideal:.2f}", f"{ratio / ideal:.0%}", f"{off:.0e}"])
        print(f"{kind}: {len(samples)} samples, {real:,} tokens, {data.plan.certificate}")
    print(f"\nForward, loss and backward over all samples, {device}, {str(dtype).removeprefix('torch.')}\n")
    head = [
        "model",
        "against",
        "padding",
        "its ms",
        "padless, ms",
        "of them tower, ms",
        "ratio",
        "ideal",
        "of ideal",
        "off",
    ]
    table(head, rows)


def make_vlm(kind: str) -> Any:
    from transformers import AutoConfig, AutoModelForImageTextToText

    rotary = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]}
    text = {**TEXT, "num_attention_heads": 4, "num_key_value_heads": 4, "rope_parameters": rotary, "bos_token_id": None}
    vision = {"hidden_size": 128, "intermediate_size": 256, "num_heads": 2, "depth": 2, "out_hidden_size": 256}
    own = {"fullatt_block_indexes": [1]} if kind == "qwen2_5_vl" else {"deepstack_visual_indexes": [0]}
    if kind == "qwen3_vl":
        text["head_dim"] = 64
    config = AutoConfig.for_model(
        kind,
        text_config={**text, "eos_token_id": None},
        vision_config={**vision, **own, "patch_size": 14},
        image_token_id=IMAGE_TOKEN,
        video_token_id=IMAGE_TOKEN - 1,
    )
    torch.manual_seed(0)
    return AutoModelForImageTextToText.from_config(config)


def make_samples(count: int = 32) -> list[dict[str, Any]]:
    """Instruction data: a picture or two of mixed sizes, or none, and a text of log-normal length."""
    rng = np.random.default_rng(1)
    samples = []
    for _ in range(count):
        grids = [[1, *(2 * rng.integers(3, 10, 2)).tolist()] for _ in range(int(rng.integers(0, 3)))]
        text = int(np.clip(rng.lognormal(np.log(80), 0.8), 8, 600))
        # A mark before each image: Transformers' own positions cannot tell neighbouring ones apart.
        seen = [token for _, h, w in grids for token in (1950, *[IMAGE_TOKEN] * (h * w // 4))]
        ids = np.array([*rng.integers(3, 1900, 4), *seen, *rng.integers(3, 1900, text)])
        labels = np.where(np.arange(len(ids)) < len(ids) - text // 2, -100, ids)
        samples.append({"input_ids": ids, "labels": labels, "image_grid_thw": np.array(grids).reshape(-1, 3)})
    return samples


def random_pixels(sample: dict[str, Any]) -> dict[str, Any]:
    patches = int(sample["image_grid_thw"].prod(axis=1).sum())
    return {"pixel_values": np.random.default_rng(patches).standard_normal((patches, 1176)).astype(np.float32)}


def _on(batch: Any, device: str, dtype: torch.dtype) -> Any:
    placed = batch.torch(device)
    media = {key: x.to(dtype) if x.is_floating_point() else x for key, x in (placed.media or {}).items()}
    return dataclasses.replace(placed, media=media or None)


def padded_call(samples: list[dict[str, Any]], length: int | None, device: str, dtype: torch.dtype) -> dict[str, Any]:
    """A batch with a mask, to its longest sample or to `length`."""
    length = length or max(len(each["input_ids"]) for each in samples)
    shape = (len(samples), length)
    ids, mask, labels = torch.zeros(shape).long(), torch.zeros(shape).long(), torch.full(shape, -100)
    for i, each in enumerate(samples):
        n = len(each["input_ids"])
        ids[i, :n], labels[i, :n], mask[i, :n] = torch.tensor(each["input_ids"]), torch.tensor(each["labels"]), 1
    call = {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": labels,
        "mm_token_type_ids": (ids == IMAGE_TOKEN).long(),
    }
    seen = [each for each in samples if len(each["image_grid_thw"])]
    if seen:
        call["image_grid_thw"] = torch.cat([torch.tensor(each["image_grid_thw"]) for each in seen])
        pixels = torch.cat([torch.from_numpy(random_pixels(each)["pixel_values"]) for each in seen])
        call["pixel_values"] = pixels.to(dtype)
    return {key: value.to(device) for key, value in call.items()}


def padded_gradients(model: Any, calls: list[dict[str, Any]], targets: int) -> torch.Tensor:
    model.zero_grad()
    for call in calls:
        logits = model(**{key: value for key, value in call.items() if key != "labels"}, use_cache=False).logits
        flat, labels = logits[:, :-1].flatten(0, 1).float(), call["labels"][:, 1:].flatten()
        (torch.nn.functional.cross_entropy(flat, labels, reduction="sum") / targets).backward()
    return gradients_of(model)


def packed_gradients(model: Any, batches: list[Any], targets: int) -> torch.Tensor:
    from padless import packed_loss
    from padless.frameworks.transformers_batch import transformers_batch

    model.zero_grad()
    for batch in batches:
        packed_loss(model(**transformers_batch(batch)).logits, batch, denominator=targets).backward()
    return gradients_of(model)


def tower_gradients(model: Any, calls: list[dict[str, Any]]) -> None:
    model.zero_grad()
    for call in calls:
        if "pixel_values" in call:
            model.model.visual(call["pixel_values"], grid_thw=call["image_grid_thw"]).pooler_output.sum().backward()


def gradients_of(model: Any) -> torch.Tensor:
    return torch.cat([p.grad.float().flatten() for p in model.parameters() if p.grad is not None])


# pi0 and pi0.5 --------------------------------------------------------------------------------------------------------

# A quarter of pi05_libero's tokens (views of 64, prompts in 50 slots), and its proportions: an MLP eight times as wide,
# attention about 3 % of a step and the tower about 14 %.
POLICIES = {
    "cpu": {"width": 256, "hidden": 2048, "expert_width": 128, "expert_hidden": 512, "heads": 4, "head_size": 64},
    "cuda": {"width": 1024, "hidden": 8192, "expert_width": 512, "expert_hidden": 2048, "heads": 8, "head_size": 128},
}


# Views and prompt lengths of samples: as in LIBERO; and one batch of robots with one to three cameras.
SAMPLES: dict[str, Callable[[int], tuple[list[int], np.ndarray]]] = {
    "one of three cameras masked, prompts of a third of their slot": lambda n: ([2] * n, np.linspace(5, 28, n)),
    "one to three cameras, prompts of a third of their slot": lambda n: ([1 + i % 3 for i in range(n)], _long_tail(n)),
}


def _long_tail(count: int) -> np.ndarray:
    """A few long prompts among short ones, 5 to 50."""
    return 5 + 45 * np.linspace(0, 1, count) ** 3


def policy(device: str, repeats: int) -> None:
    """A pi0.5-like training step, padded, trimmed and padding-free."""
    from padless.frameworks.pi05 import padding_free, trim
    from padless.frameworks.pi05.small import SmallConfig, SmallPolicy, small_samples

    count, dtype = (12, torch.float32) if device == "cpu" else (64, torch.bfloat16)
    sizes = {"prompt_slots": 50, "actions": 10, "image": 64, "patch": 8, "depth": 4}
    tower = {"tower_width": 128, "tower_depth": 6} if device == "cpu" else {"tower_width": 1024, "tower_depth": 12}
    config = SmallConfig(**sizes, **tower, **POLICIES[device])
    models = {name: SmallPolicy(config, dtype=dtype).to(device) for name in ("padded", "trimmed", "padding-free")}
    handles = {"padded": None, "trimmed": trim(models["trimmed"]), "padding-free": padding_free(models["padding-free"])}
    size = sum(parameter.numel() for parameter in models["padded"].parameters())
    print(f"pi0.5-like step, {size / 1e6:.1f} M parameters, {count} samples, forward and backward, {device}, {dtype}\n")
    for what, make in SAMPLES.items():
        views, lengths = make(count)
        prompts = lengths.round().astype(int)
        given = small_samples(config, views=views, prompts=prompts.tolist(), dtype=dtype)
        given = {k: [x.to(device) for x in v] if isinstance(v, list) else v.to(device) for k, v in given.items()}
        ways = {name: functools.partial(policy_step, model, given) for name, model in models.items()}
        losses = {name: run() for name, run in ways.items()}
        computed = {
            "padded": (3, config.prompt_slots),
            "trimmed": (max(views), int(prompts.max())),
            "padding-free": (float(np.mean(views)), float(prompts.mean())),
        }
        flops = {name: _flops(config, *sizes, name, float(np.mean(views))) for name, sizes in computed.items()}
        ms = medians(ways, repeats, device)
        rows = []
        for name in handles:
            seen, prompt = computed[name]
            tokens = seen * config.layout.tokens_per_view + prompt + config.layout.suffix_tokens
            off = float((losses[name] - losses["padded"]).abs() / losses["padded"].abs())
            ratios = [f"{ms['padded'] / ms[name]:.2f}", f"{flops['padded'] / flops[name]:.2f}"]
            rows.append([name, f"{tokens:.0f}", f"{ms[name]:.1f}", *ratios, f"{off:.0e}"])
        print(f"{what} ({prompts.mean():.1f} of {config.prompt_slots})\n")
        table(["way", "tokens per sample", "step, ms", "padded / this", "by FLOPs", "loss off"], rows)


def _flops(config: Any, views: float, prompt: float, way: str, real: float) -> float:
    """The tower sees real views only, but for the padded model."""
    suffix = config.layout.suffix_tokens
    encoded = views if way == "padded" else real
    return config.cost.flops(
        views=views, prompt=prompt, suffix=suffix, encoded=encoded, mask=way != "padding-free"
    ).total


def policy_step(model: Any, samples: dict[str, Any]) -> torch.Tensor:
    model.zero_grad()
    loss = model(**samples).float().mean()
    loss.backward()
    return loss.detach()


def cost(_device: str, _repeats: int) -> None:
    """The published case by FLOPs: pi0.5 on LIBERO, a masked camera slot and prompts padded to 200."""
    from padless.measure.vla_cost import REPORTED_SAVING, case_study

    rows = [
        [
            case.change,
            case.tokens,
            f"{case.flops.total / 1e12:.2f}",
            f"{case.flops.tower / 1e12:.2f}",
            f"{case.flops.attention / case.flops.total:.1%}",
            f"{case.saving:.1%}",
        ]
        for case in case_study()
    ]
    print("pi05_libero, forward TFLOP per sample, by the cost model\n")
    table(["change", "tokens", "TFLOP", "of it tower", "of it attention", "saving"], rows)
    print(f"Reported for a training step: {REPORTED_SAVING:.2%} (4.71 s to 2.85 s)\n")


SECTIONS: dict[str, Callable[[str, int], None]] = {"tower": tower, "training": training, "policy": policy, "cost": cost}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"any of {', '.join(SECTIONS)}; all when none is given")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true", help="CPU time, for a busy machine; use one thread")
    arguments = parser.parse_args()
    if arguments.cpu_time:
        global clock  # noqa: PLW0603 - one clock for all sections
        clock = time.process_time
    for name in arguments.sections or SECTIONS:
        SECTIONS[name](arguments.device, arguments.repeats)


if __name__ == "__main__":
    main()
