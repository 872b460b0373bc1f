"""What the train_*.py examples share, so that each shows its trainer and nothing else."""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from padless import Batch, PackedDataset, TokenStore, plan
from padless.corpus import Sample
from padless.frameworks.tiny_models import VOCABULARY, tiny_model
from padless.training import PackedLoader

STEPS, ROWS = 20, 2
Train = Callable[..., list[float]]


def write_store(folder: str, *, count: int = 300, longest: int = 128) -> TokenStore:
    """Samples of chat-like lengths (many short, few long) that count upwards, so that there is something to learn.

    The first third of each is a prompt and no target, as `padless pack --targets completion` would have it.
    """
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(np.log(longest / 8), 0.7, count).astype(int), 2, longest)
    counted = [(generator.integers(VOCABULARY) + generator.integers(1, 4) * np.arange(n)) % VOCABULARY for n in lengths]
    samples = [Sample(ids, np.arange(len(ids)) > len(ids) // 3) for ids in counted]
    store = TokenStore.write(folder, samples, vocab_size=VOCABULARY)
    store.add_plan(plan(store.lengths, longest))
    return store


def llama(vocabulary: int) -> Any:
    """A tiny Llama of Transformers, with random weights."""
    return tiny_model("llama", vocabulary=vocabulary, dtype=torch.float32)


def padded(batch: Batch, width: int) -> dict[str, torch.Tensor]:
    """The same samples as a padded trainer sees them: one per row of `width`, with an attention mask."""
    shape = (batch.num_segments, width)
    inputs = {
        "input_ids": torch.zeros(shape, dtype=torch.long),
        "labels": torch.full(shape, -100),
        "attention_mask": torch.zeros(shape, dtype=torch.long),
    }
    values = (batch.input_ids, batch.labels, np.ones(batch.num_slots, np.int64))
    for name, value in zip(inputs, values, strict=True):
        for row, piece in enumerate(batch.unpack(value)):
            inputs[name][row, : len(piece)] = torch.as_tensor(piece)
    return inputs


def padded_loss(model: Any, batch: Batch, width: int, targets: float) -> torch.Tensor:
    """What `packed_loss` is set against: padded rows through the untouched model, torch's own cross entropy."""
    inputs = {name: value.to(batch.input_ids.device) for name, value in padded(batch, width).items()}
    labels = inputs.pop("labels")[:, 1:].flatten()
    logits = model(**inputs).logits[:, :-1].flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / targets


def micro_batches(loader: PackedLoader, steps: int, accumulation: int) -> Iterator[list[Batch]]:
    """The batches of each optimizer step, epoch after epoch."""
    taken: list[Batch] = []
    while steps:
        for batch in loader:
            taken.append(batch)
            if len(taken) == accumulation:
                yield taken
                taken, steps = [], steps - 1
            if not steps:
                return


def main(train: Train, make_model: Callable[[int], Any] = llama, *, show: bool = True) -> None:
    """Run both arms over `STORE`, or over a generated one, and print what came out."""
    with tempfile.TemporaryDirectory() as folder:
        store = TokenStore(sys.argv[1]) if len(sys.argv) > 1 else write_store(folder)
        dataset = PackedDataset(store)
        made_by = store.manifest.tokenizer
        vocabulary = VOCABULARY if made_by is None else made_by.vocab_size
        for packed in (False, True):
            model = make_model(vocabulary)
            started = time.perf_counter()
            losses = train(model, dataset, packed=packed)
            seconds = time.perf_counter() - started
            name = "packed" if packed else "padded"
            if show:
                print(f"{name}: loss {losses[0]:.4f} -> {losses[-1]:.4f} in {len(losses)} steps, {seconds:.1f} s")
