"""A tiny Qwen2.5-VL on generated images, padded and packed: `python examples/train_qwen_vl.py [FOLDER]`.

Each sample shows a table with a few coloured blocks, from one camera or two, and asks where one of them is. The folder
gets JSON lines with the images as PNG files, which is then read back as a stream: sizes come from the files' headers,
pixels are decoded only for the rows that are loaded. Both arms take the same samples in the same steps, so that their
losses must agree; the packed model is audited before it trains, and `audit.html` in the folder says what was proven.
"""

import copy
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from padless import Batch, audit, packed_loss
from padless.auditing.page import write_page
from padless.corpus.multimodal import ImageRef, read_media
from padless.frameworks.qwen_vl import MediaCollator, layout_of, token_loss
from padless.frameworks.tiny_models import IMAGE_TOKENS, tiny_model
from padless.frameworks.transformers import prepare
from padless.frameworks.transformers_batch import transformers_batch
from padless.rows import MediaLayout
from padless.rows.grids import PatchGrid
from padless.rows.media import expand_placeholders
from padless.rows.patches import patchify
from padless.training import MediaDataset, PackedLoader, RowSampler

SAMPLES, STEPS, CAPACITY, PATCHES = 96, 12, 256, 640
GRID = PatchGrid(patch=4, min_pixels=256, max_pixels=2048)  # the tiny model's patches of 4 pixels
COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 80, 220), "yellow": (230, 210, 50)}
PLACES = {"left": 0, "middle": 1, "right": 2}
LETTERS = " abcdefghijklmnopqrstuvwxyz.,?'"
IMAGE, START, END = (IMAGE_TOKENS[f"{name}_token_id"] for name in ("image", "vision_start", "vision_end"))


def write_data(folder: Path, *, count: int = SAMPLES, seed: int = 0) -> Path:
    """Images and instructions as JSON lines."""
    rng = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    with (folder / "samples.jsonl").open("w") as lines:
        for number in range(count):
            height, width = (int(n) for n in rng.integers(12, 64, 2))
            colours = rng.permutation(list(COLOURS))[:3].tolist()
            files = []
            for camera in range(int(rng.integers(1, 3))):
                file = folder / "images" / f"{number}-{camera}.png"
                file.write_bytes(ImageRef.of_pixels(table_of(colours, height, width, rng)).data or b"")
                files.append(f"images/{file.name}")
            asked = int(rng.integers(3))
            question = (
                f"pick up the {colours[asked]} block" + ", then wait" * int(rng.integers(0, 6)) + ". where is it?"
            )
            lines.write(json.dumps({"images": files, "question": question, "answer": list(PLACES)[asked]}) + "\n")
    return folder / "samples.jsonl"


def table_of(colours: list[str], height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """`uint8[H, W, 3]`: three blocks on a grey table, a little noise."""
    image = np.full((height, width, 3), 128, dtype=np.int64)
    third = width // 3
    for place, colour in enumerate(colours):
        image[height // 3 :, place * third + 1 : (place + 1) * third] = COLOURS[colour]
    return np.clip(image + rng.integers(-9, 10, image.shape), 0, 255).astype(np.uint8)


def outline(fields: Mapping[str, Any], images: tuple[ImageRef, ...], layout: MediaLayout) -> dict[str, Any]:
    """All of a sample but its pixels: ids with every placeholder, labels on the answer, grids by the headers' sizes."""
    grids = [GRID.image(*image.size()) for image in images]
    ids = [token for _ in images for token in (START, IMAGE, END)] + to_ids(fields["question"])
    answer = to_ids(" " + fields["answer"] + ".")
    whole = np.array([*ids, *answer])
    index = expand_placeholders(whole, layout, image_grid_thw=grids)
    labels = np.where(np.arange(len(whole)) < len(ids), -100, whole)
    return {"input_ids": whole[index], "labels": labels[index], "image_grid_thw": np.array(grids), "images": images}


def to_ids(text: str) -> list[int]:
    return [3 + LETTERS.index(letter) for letter in text]


def load_pixels(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Decode the images of one sample."""
    patches = []
    for image in sample["images"]:
        height, width = GRID.resized(*image.size())
        patches.append(patchify(image.pixels(height=height, width=width), GRID))
    return {"pixel_values": np.concatenate(patches)}


def make_dataset(lines: Path, layout: MediaLayout) -> MediaDataset:
    samples = []
    for record in read_media(lines):
        if not hasattr(record, "images"):
            raise SystemExit(f"a record cannot be read: {record}")
        samples.append(outline(record.fields, record.images, layout))
    return MediaDataset(samples, load_pixels, layout=layout, capacity=CAPACITY, patch_capacity=PATCHES)


def packed_step(model: Any, batch: Batch) -> torch.Tensor:
    return packed_loss(model(**transformers_batch(batch)).logits, batch)


def padded_step(model: Any, batch: Batch) -> torch.Tensor:
    """The same samples as a padded batch with a mask, as Transformers' examples do it."""
    ids, labels = ([torch.as_tensor(x) for x in batch.unpack(values)] for values in (batch.input_ids, batch.labels))
    padded = {
        "input_ids": torch.nn.utils.rnn.pad_sequence(ids, batch_first=True),
        "attention_mask": torch.nn.utils.rnn.pad_sequence([torch.ones_like(x) for x in ids], batch_first=True),
    }
    wanted = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)
    media = {name: torch.as_tensor((batch.media or {})[name]) for name in ("pixel_values", "image_grid_thw")}
    kinds = (padded["input_ids"] == IMAGE).long()
    logits = model(**padded, **media, mm_token_type_ids=kinds, use_cache=False).logits
    flat, targets = logits[:, :-1].flatten(0, 1), wanted[:, 1:].flatten()
    return torch.nn.functional.cross_entropy(flat, targets, reduction="sum") / batch.num_targets


def train(model: Any, dataset: MediaDataset, *, packed: bool, steps: int = STEPS) -> tuple[list[float], float]:
    """Losses of each step, and seconds of the model's work."""
    step = packed_step if packed else padded_step
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = PackedLoader(RowSampler(dataset, rows=2, drop_last=True, seed=1), collate_fn=Batch.torch)
    model.train()
    losses: list[float] = []
    seconds = 0.0
    while len(losses) < steps:
        for batch in loader:
            begin = time.perf_counter()
            loss = step(model, _as(batch, model.dtype))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds += time.perf_counter() - begin
            losses.append(loss.item())
            if len(losses) == steps:
                break
    return losses, seconds


def _as(batch: Batch, dtype: torch.dtype) -> Batch:
    media = {name: x.to(dtype) if x.is_floating_point() else x for name, x in (batch.media or {}).items()}
    return dataclasses.replace(batch, media=media)


def counted_loss(outputs: Any, inputs: Mapping[str, Any], num_targets: int) -> torch.Tensor:
    return token_loss(outputs, inputs["labels"], num_targets)


def audited(model: Any, dataset: MediaDataset, page: Path) -> Any:
    """The audit on four samples of the data set."""
    samples = [{**dataset.samples[i], **load_pixels(dataset.samples[i])} for i in range(4)]
    wanted = ("input_ids", "labels", "image_grid_thw", "pixel_values")
    chosen = [{name: each[name] for name in wanted} for each in samples]
    # The model's own loss takes no count of targets, and so averages unequal micro-batches; the audit would say so.
    report = audit(model, MediaCollator(layout=dataset.layout), counted_loss, samples=chosen, name="packed Qwen2.5-VL")
    write_page(report, page)
    return report


def main(folder: Path, *, dtype: torch.dtype = torch.float32, steps: int = STEPS) -> dict[str, list[float]]:
    padded_model = tiny_model("qwen2_5_vl", dtype=dtype)
    packed_model = copy.deepcopy(padded_model)
    print(prepare(packed_model))
    dataset = make_dataset(write_data(folder), layout_of(padded_model))
    print(f"{len(dataset.samples)} samples, {dataset.plan.certificate}")

    report = audited(packed_model, dataset, folder / "audit.html")
    print("audit: " + ", ".join(f"{result.name} {result.verdict}" for result in report))
    report.assert_clean()

    curves = {}
    for name, model in (("padded", padded_model), ("packed", packed_model)):
        curves[name], seconds = train(model, dataset, packed=name == "packed", steps=steps)
        print(f"{name}: loss {curves[name][0]:.4f} -> {curves[name][-1]:.4f} in {steps} steps, {seconds:.1f} s")
    return curves


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
