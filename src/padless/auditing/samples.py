"""The samples an audit runs on: short, of unequal lengths, no two tokens alike where the vocabulary allows it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from padless.errors import PadlessError

# Five segments, so that faults which need three or more can show; one of a single token, one long enough to leave
# the reach of small windows and of every convolution in use. The sum is a prime: no hidden size equals it by chance.
LENGTHS = (7, 12, 1, 9, 24)
IGNORED = -100

Sample = dict[str, Any]


def make_samples(
    *, vocab_size: int, seed: int, eod: int | None, forbidden: frozenset[int], lengths: Sequence[int] = LENGTHS
) -> list[Sample]:
    """Random samples in the form collators take: `{"input_ids": list[int], "labels": list[int]}`.

    Labels are unshifted; every second sample of at least six tokens has its first third masked as a prompt. Samples of
    at least four tokens end with `eod`, and one carries it in the middle too, as chat turns do: a collator that masks
    by token id loses those targets.

    Raises:
        PadlessError: When fewer than four ordinary tokens are left in the vocabulary.
    """
    rng = np.random.default_rng(seed)
    ordinary = ordinary_tokens(vocab_size, forbidden | ({eod} if eod is not None else set()))
    order = rng.permutation(len(lengths))
    total = sum(lengths)
    stock = rng.permutation(ordinary) if len(ordinary) >= total else rng.choice(ordinary, total)
    samples, prompts = [], 0
    for length in (int(lengths[i]) for i in order):
        tokens, stock = [int(t) for t in stock[:length]], stock[length:]
        if eod is not None and length >= 4:
            tokens[-1] = eod
        if eod is not None and length >= 16:
            tokens[length // 2] = eod
        labels = list(tokens)
        if length >= 6:
            prompts += 1
            if prompts % 2 == 0:
                labels[: length // 3] = [IGNORED] * (length // 3)
        samples.append({"input_ids": tokens, "labels": labels})
    return samples


def ordinary_tokens(vocab_size: int, forbidden: frozenset[int]) -> np.ndarray:
    """The token ids an audit may use: all but the special ones."""
    tokens = np.setdiff1d(np.arange(vocab_size), np.fromiter(forbidden, dtype=np.int64, count=len(forbidden)))
    if len(tokens) < 4:
        raise PadlessError(f"vocabulary of {vocab_size}: an audit needs at least four ordinary tokens")
    return tokens


def perturb(
    samples: Sequence[Sample],
    which: int,
    *,
    rng: np.random.Generator,
    ordinary: np.ndarray,
    frozen: frozenset[int] = frozenset(),
    positions: slice = slice(None),
) -> list[Sample]:
    """The same samples, with every token of one replaced by another (labels follow; lengths and masks stay).

    Tokens in `frozen` (image slots and the like) stay, since the model counts them.
    """
    tokens = np.asarray(samples[which]["input_ids"], dtype=np.int64)
    change = np.zeros(len(tokens), dtype=bool)
    change[positions] = True
    change &= ~np.isin(tokens, list(frozen))
    # Index of the old token in `ordinary`, moved by a random non-zero step: never the old token again.
    at = np.searchsorted(ordinary, tokens) % len(ordinary)
    step = rng.integers(1, len(ordinary), len(tokens))
    new = ordinary[(at + step) % len(ordinary)]
    new = np.where(new == tokens, ordinary[(at + step + 1) % len(ordinary)], new)
    new = np.where(change, new, tokens)
    labels = np.asarray(samples[which].get("labels", tokens), dtype=np.int64)
    changed = dict(samples[which]) | {
        "input_ids": new.tolist(),
        "labels": np.where(labels == IGNORED, IGNORED, new).tolist(),
    }
    return [*samples[:which], changed, *samples[which + 1 :]]


def masked_first(samples: Sequence[Sample]) -> list[Sample]:
    """The samples with their first token no target: masked models are not trained on the token that opens a text."""
    return [sample | {"labels": [IGNORED, *sample["labels"][1:]]} for sample in samples]


def target_mask(sample: Sample, *, shift: int) -> np.ndarray:
    """Which tokens of a sample are targets (`[n]`, bool): a label is there, and something precedes it."""
    labels = np.asarray(sample["labels"], dtype=np.int64)
    mask = labels != IGNORED
    mask[:shift] = False
    return mask
