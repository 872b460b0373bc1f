"""What the audit should find, found the slow and simple way, sharing no code with it.

A row is isolated when changing any one sample changes no logit of any other, in float64; it has parity when each
sample's logits are those of the sample alone.
"""

from collections.abc import Callable
from typing import Any

import torch

LENGTHS = (6, 11, 1, 14)


def row(seed: int, vocab_size: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randint(3, vocab_size, (n,), generator=generator)).tolist() for n in LENGTHS]


def logits_of(model: torch.nn.Module, collate: Callable, samples: list[list[int]]) -> list[torch.Tensor]:
    inputs = collate([{"input_ids": list(s), "labels": list(s)} for s in samples])
    with torch.no_grad():
        logits: Any = model(**inputs).logits.flatten(0, 1)
    return list(logits.split([len(s) for s in samples]))


def isolated(model: torch.nn.Module, collate: Callable, vocab_size: int) -> bool:
    samples = row(0, vocab_size)
    before = logits_of(model, collate, samples)
    for changed in range(len(samples)):
        for seed in (1, 2):
            other = list(samples)
            other[changed] = row(seed, vocab_size)[changed]
            after = logits_of(model, collate, other)
            for i in range(len(samples)):
                if i != changed and float((before[i] - after[i]).abs().max()) > 1e-9:
                    return False
    return True


def parity(model: torch.nn.Module, collate: Callable, vocab_size: int) -> bool:
    samples = row(0, vocab_size)
    packed = logits_of(model, collate, samples)
    alone = [logits_of(model, collate, [s])[0] for s in samples]
    return all(float((a - b).abs().max()) < 1e-4 for a, b in zip(packed, alone, strict=True))
