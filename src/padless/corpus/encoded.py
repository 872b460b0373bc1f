"""Raw batches to blocks of tokens: the part of the job that may run anywhere, in any order."""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import NamedTuple

import numpy as np

from padless.corpus.encode import EncodedSample, Encoder
from padless.corpus.shard import Block, token_dtype
from padless.corpus.sources import BadRecord, RawBatch, Source, read_raw

__all__ = ["Encoded", "Position", "encoded_batches"]

AHEAD = 3  # raw batches per worker that may wait or be worked on: bounds memory, keeps everyone busy


class Position(NamedTuple):
    """A place in the inputs: everything up to and including this record."""

    source: int
    record: int


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """What one raw batch became.

    Attributes:
        source: Index of the source it came from.
        block: Its samples, in order.
        rejected: Records that could not become a sample.
        nbytes: Size of the raw batch, for progress.
        straddling: Tokens across the border of target text and other text.
        surplus_eod: EOD tokens that were left out at the end of a sample, because one is enough.
    """

    source: int
    block: Block
    rejected: tuple[BadRecord, ...]
    nbytes: int
    straddling: int
    surplus_eod: int


def encoded_batches(
    sources: Sequence[Source], encoder: Encoder, *, after: Position | None, workers: int
) -> Iterator[Encoded]:
    """Encode all sources, in order, whatever the number of workers.

    Args:
        sources: What to read.
        encoder: What to make of it.
        after: Start behind this record; None starts at the first.
        workers: 1: in this process, reading beside encoding, on all the threads that `tokenizers` uses. More: that
            many processes of one tokenizer thread each.
    """
    with _executor(workers, encoder) as submit:
        waiting: deque[Future[Encoded]] = deque()
        for index, batch in _raw(sources, encoder, after):
            waiting.append(submit(index, batch))
            if len(waiting) >= AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _raw(sources: Sequence[Source], encoder: Encoder, after: Position | None) -> Iterator[tuple[int, RawBatch]]:
    first = 0 if after is None else after.source
    for index in range(first, len(sources)):
        start = after.record if after is not None and index == after.source else 0
        for batch in read_raw(sources[index], start, columns=encoder.shape.columns):
            yield index, batch


@contextmanager
def _executor(workers: int, encoder: Encoder):
    """Something to submit `(source index, raw batch)` to."""
    if workers == 1:
        pool: Executor = ThreadPoolExecutor(2)
        try:
            yield lambda index, batch: pool.submit(_encode, encoder, index, batch)
        finally:
            pool.shutdown(cancel_futures=True)
        return
    # Spawned, not forked: a fork of a process whose tokenizer has started its threads can hang.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_settle, initargs=(encoder,))
    try:
        yield lambda index, batch: pool.submit(_encode_here, index, batch)
    finally:
        pool.shutdown(cancel_futures=True)


_encoder: Encoder | None = None  # of a worker process, set once by its initializer


def _settle(encoder: Encoder) -> None:
    global _encoder  # noqa: PLW0603 - how a process pool hands a worker what it keeps
    Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _encoder = encoder


def _end_with_parent() -> None:
    """A worker waits for work on a pipe that its siblings hold open too, so a killed parent would leave it for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _encode_here(index: int, batch: RawBatch) -> Encoded:
    assert _encoder is not None
    return _encode(_encoder, index, batch)


def _encode(encoder: Encoder, index: int, batch: RawBatch) -> Encoded:
    items = encoder.encode(batch)
    samples = [item for item in items if isinstance(item, EncodedSample)]
    return Encoded(
        source=index,
        block=to_block(samples, index, token_dtype(encoder.tokenizer.vocab_size)),
        rejected=tuple(item for item in items if isinstance(item, BadRecord)),
        nbytes=len(batch.payload),
        straddling=sum(sample.straddling for sample in samples),
        surplus_eod=sum(sample.surplus_eod for sample in samples),
    )


def to_block(samples: Sequence[EncodedSample], source: int, dtype: np.dtype) -> Block:
    """Samples end to end; targets stay None where every token but a sample's first is one."""
    lengths = np.array([len(sample.ids) for sample in samples], np.int32)
    tokens = np.concatenate([sample.ids for sample in samples]) if samples else np.empty(0, dtype)
    masked = any(sample.spans is not None for sample in samples)
    return Block(
        tokens=tokens.astype(dtype, copy=False),
        lengths=lengths,
        targets=_targets(samples, lengths) if masked else None,
        sources=np.full(len(samples), source, np.uint32),
        records=np.array([sample.number for sample in samples], np.int64),
    )


def _targets(samples: Sequence[EncodedSample], lengths: np.ndarray) -> np.ndarray:
    """`bool[T]`: +1 where a span begins, -1 where it ends, summed up; no work per token in Python."""
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    begins: list[int] = []
    ends: list[int] = []
    for start, sample in zip(starts.tolist(), samples, strict=True):
        spans = ((1, len(sample.ids)),) if sample.spans is None else sample.spans
        begins += [start + first for first, _ in spans]
        ends += [start + end for _, end in spans]
    edges = np.zeros(int(lengths.sum()) + 1, np.int8)
    edges[begins] += 1  # spans of one sample are apart, but one may end where the next sample's begins
    np.subtract.at(edges, ends, 1)
    return np.cumsum(edges[:-1], dtype=np.int8).astype(np.bool_)
