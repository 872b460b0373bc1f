"""Train the same model on the same samples, padded and packed, and set the loss curves side by side.

    python examples/train_quickstart.py STORE [STEPS]

A plain loop. Each optimizer step takes the samples of four packed rows, some fifty. The padded arm has them in random
order in batches of four, each padded to its longest: what a collator does. Both sum the loss over targets and divide by
the targets of the whole step, so the curves are the same up to rounding, and the time is not.
"""

import itertools
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch

from padless import Batch, PackedDataset, TokenStore, collate, packed_loss
from padless.frameworks.trainees import load_trainee
from padless.measure import Trainee
from padless.training import PackedLoader, RowSampler

ROWS = 4  # of an optimizer step
SAMPLES = 4  # of a padded micro-batch


def train(trainee: Trainee, dataset: PackedDataset, steps: int, *, packed: bool) -> tuple[list[float], float]:
    """Losses of the steps, and seconds."""
    optimizer = torch.optim.AdamW(trainee.parameters, lr=1e-3)
    run = trainee.packed if packed else trainee.padded
    losses, started = [], time.perf_counter()
    loader = PackedLoader(RowSampler(dataset, rows=ROWS, drop_last=True, ranks=1, rank=0))
    for step, arrays in enumerate(itertools.islice(loader, steps)):
        batch = arrays.torch()
        total = 0.0
        for micro in [batch] if packed else padded(batch):
            loss = packed_loss(run(micro), micro, denominator=batch.num_targets)
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
        if sys.stdout.isatty():
            print(
                f"\r{'packed' if packed else 'padded'}: step {step + 1} of {steps}, loss {total:.4f} ",
                end="",
                flush=True,
            )
    return losses, time.perf_counter() - started


def padded(batch: Batch) -> Iterator[Batch]:
    """The samples of packed rows as padded batches, in random order: in a row the longest come first."""
    parts = (batch.unpack(batch.input_ids), batch.unpack(batch.labels))
    samples = [{"input_ids": ids, "labels": labels} for ids, labels in zip(*parts, strict=True)]
    order = np.random.default_rng(0).permutation(len(samples))
    for at in range(0, len(samples), SAMPLES):
        group = [samples[i] for i in order[at : at + SAMPLES]]
        longest = max(len(sample["input_ids"]) for sample in group)
        yield collate([[sample] for sample in group], capacity=longest).torch()


def main(path: str, steps: int) -> None:
    store = TokenStore(path)
    dataset = PackedDataset(store)
    made_by = store.manifest.tokenizer
    found = []
    for packed in (False, True):
        trainee = load_trainee("llama-1m", vocabulary=None if made_by is None else made_by.vocab_size)
        found.append(train(trainee, dataset, steps, packed=packed))
    (padded_losses, padded_seconds), (packed_losses, packed_seconds) = found
    print(f"\r{'step':>6}{'padded loss':>14}{'packed loss':>14}{'':20}")
    for step in sorted({0, steps // 4, steps // 2, 3 * steps // 4, steps - 1}):
        print(f"{step + 1:6}{padded_losses[step]:14.5f}{packed_losses[step]:14.5f}")
    apart = max(abs(a - b) / abs(a) for a, b in zip(padded_losses, packed_losses, strict=True))
    print(f"the curves differ by at most {apart:.1e} of the loss, which is rounding in float32")
    faster = padded_seconds / packed_seconds
    print(f"{steps} steps: {padded_seconds:.1f} s padded, {packed_seconds:.1f} s packed, {faster:.2f} times as fast")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 6)
