"""The audit of a store alone, and real samples of one for the audit of a model."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from padless.auditing.report import AuditReport, CheckResult
from padless.corpus import TokenStore
from padless.corpus.verify import verify
from padless.errors import PadlessError

SAMPLES, LONGEST, LOOKED_AT = 5, 128, 1000


def audit_store(path: str | Path) -> AuditReport:
    """Every promise that needs no model, as an audit report.

    Raises:
        PadlessError: When the folder is no store.
        ViolationError: When the manifest itself was changed.
    """
    results = []
    start = time.perf_counter()
    for check in verify(path):
        broken = check.violations
        results.append(
            CheckResult(
                name=check.name,
                verdict="violated" if broken else "proven",
                mechanism="store-broken" if broken else "",
                measured=float(len(broken)),
                tolerance=0.0,
                finding="; ".join(broken) if broken else check.seen,
                seconds=time.perf_counter() - start,
            )
        )
        start = time.perf_counter()
    return AuditReport(subject=str(path), results=tuple(results))


@dataclass(frozen=True, kw_only=True)
class StoreSamples:
    """What an audit of a model takes from a store.

    Attributes:
        samples: As collators take them.
        cut: How many of them were longer than 128 tokens and were cut.
        vocab_size: Number of token ids of the store's tokenizer; without one, what the samples need.
        eod: The tokenizer's end-of-document token, or None.
    """

    samples: list[dict[str, Any]]
    cut: int
    vocab_size: int
    eod: int | None


def samples_of(path: str | Path) -> StoreSamples:
    """A few samples of a store, of lengths as unequal as its first thousand have, in the form collators take.

    Samples longer than 128 tokens are cut at the end: an audit asks who sees whom, and its cost grows with length.

    Raises:
        PadlessError: When the store has fewer than two samples of at least two tokens.
    """
    store = TokenStore(path)
    lengths = np.asarray(store.lengths[:LOOKED_AT])
    usable = np.flatnonzero(lengths >= 2)
    if len(usable) < 2:
        raise PadlessError(
            f"{path}: an audit needs two samples of at least two tokens; the first {len(lengths)} have none"
        )
    ranked = usable[np.argsort(lengths[usable], kind="stable")]
    places = np.linspace(0, len(ranked) - 1, min(SAMPLES, len(ranked))).astype(int)
    chosen = sorted(int(ranked[place]) for place in set(places.tolist()))
    samples, cut = [], 0
    for index in chosen:
        sample = store[index]
        tokens = np.asarray(sample.input_ids[:LONGEST]).astype(np.int64)
        targets = np.asarray(sample.target_mask())[:LONGEST]
        cut += len(sample) > LONGEST
        samples.append({"input_ids": tokens.tolist(), "labels": np.where(targets, tokens, -100).tolist()})
    tokenizer = store.manifest.tokenizer
    if tokenizer is not None:
        return StoreSamples(samples=samples, cut=cut, vocab_size=tokenizer.vocab_size, eod=tokenizer.eod_id)
    largest = max(max(sample["input_ids"]) for sample in samples)
    return StoreSamples(samples=samples, cut=cut, vocab_size=largest + 1, eod=None)
