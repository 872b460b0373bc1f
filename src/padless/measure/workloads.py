"""The same samples as padded batches and as packed rows: what each arm of a measurement has to work through.

Every arm gets all samples, each once, so real tokens are equal in all of them; what differs is the slots around them
and the pairs that attention scores.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from padless.errors import PadlessError
from padless.lengths import as_lengths
from padless.planning import plan

Kind = Literal["padded", "packed"]


@dataclass(frozen=True, kw_only=True)
class Work:
    """The micro-batches of one optimizer step.

    Attributes:
        kind: `"padded"`: every sample is a row of its own. `"packed"`: a micro-batch is one row of segments.
        groups: Sample numbers of each micro-batch.
        widths: Slots of one padded sample, per micro-batch; of a whole packed row, which has no padding.
        lengths: int64[N], tokens of every sample, by number.
    """

    kind: Kind
    groups: tuple[np.ndarray, ...]
    widths: tuple[int, ...]
    lengths: np.ndarray

    def __post_init__(self) -> None:
        placed = np.sort(np.concatenate(self.groups)) if self.groups else np.empty(0)
        if not np.array_equal(placed, np.arange(len(self.lengths))):
            raise PadlessError(f"work: {len(placed):,} placements of {len(self.lengths):,} samples; each goes in once")

    @property
    def calls(self) -> int:
        """Forward and backward passes."""
        return len(self.groups)

    @property
    def real_tokens(self) -> int:
        """Tokens of samples; equal in all arms."""
        return int(self.lengths.sum())

    @property
    def slots(self) -> int:
        """Tokens that the model computes, padding included."""
        rows = [len(group) if self.kind == "padded" else 1 for group in self.groups]
        return sum(count * width for count, width in zip(rows, self.widths, strict=True))

    @property
    def sum_squares(self) -> int:
        """Sum over independent sequences of length ** 2, padding included: what attention scores, twice if causal."""
        if self.kind == "packed":
            return int(np.square(self.lengths).sum())
        return sum(len(group) * width**2 for group, width in zip(self.groups, self.widths, strict=True))

    @property
    def row_squares(self) -> int:
        """Sum over micro-batches' rows of slots ** 2: what attention with a dense mask scores of a packed row."""
        if self.kind == "padded":
            return self.sum_squares
        return sum(width**2 for width in self.widths)

    @property
    def padding(self) -> float:
        """Padding as a fraction of slots."""
        return 1 - self.real_tokens / self.slots


def padded(lengths: Any, *, length: int, batch: int) -> Work:
    """Samples in their order, `batch` at a time, each padded to `length`.

    Raises:
        PadlessError: When a sample is longer.

    Example:
        >>> work = padded([3, 5, 2], length=8, batch=2)
        >>> work.calls, work.slots, work.real_tokens, work.sum_squares
        (2, 24, 10, 192)
    """
    sizes = as_lengths(lengths).astype(np.int64)
    if sizes.max() > length:
        raise PadlessError(f"a sample has {sizes.max():,} tokens and cannot be padded to {length:,}: it would be cut")
    groups = _cut(np.arange(len(sizes)), batch)
    return Work(kind="padded", groups=groups, widths=(length,) * len(groups), lengths=sizes)


def dynamic(lengths: Any, *, batch: int) -> Work:
    """Samples in their order, `batch` at a time, each padded to the longest of its batch.

    Example:
        >>> dynamic([3, 5, 2], batch=2).slots
        12
    """
    sizes = as_lengths(lengths).astype(np.int64)
    return _to_longest(sizes, _cut(np.arange(len(sizes)), batch))


def bucketed(lengths: Any, *, batch: int) -> Work:
    """Samples of similar length together, `batch` at a time, padded to the longest: the least that padding can do.

    Batches are runs of the sorted lengths; if the samples do not fill the last one, the short batch stands where it
    saves most.

    Example:
        >>> bucketed([3, 5, 2], batch=2).slots
        11
    """
    sizes = as_lengths(lengths).astype(np.int64)
    order = np.argsort(sizes, kind="stable")
    rest = len(order) % batch if batch > 0 else 0
    found = [_to_longest(sizes, _cut(order, batch))]
    for start in range(0, len(order) - rest, batch) if rest else ():
        short = order[start : start + rest]
        groups = (*_cut(order[:start], batch), short, *_cut(order[start + rest :], batch))
        found.append(_to_longest(sizes, groups))
    return min(found, key=lambda work: work.slots)


def packed(lengths: Any, *, capacity: int) -> Work:
    """Samples in rows of at most `capacity` tokens, one row a micro-batch, without padding behind the last segment.

    Example:
        >>> work = packed([3, 5, 2], capacity=8)
        >>> work.calls, work.slots, work.sum_squares, work.row_squares
        (2, 10, 38, 68)
    """
    sizes = as_lengths(lengths).astype(np.int64)
    rows = plan(sizes, capacity)
    groups = tuple(rows.row(r)[0] for r in range(rows.num_rows))
    widths = tuple(int(sizes[group].sum()) for group in groups)
    return Work(kind="packed", groups=groups, widths=widths, lengths=sizes)


def pick(lengths: Any, count: int, *, seed: int = 0) -> np.ndarray:
    """Numbers of `count` samples that stand for all: at equal steps through the sorted lengths, in random order.

    A random draw of a few dozen would have another mean length, and so another padding rate, than the data.

    Example:
        >>> lengths = np.arange(1, 1001)
        >>> lengths[pick(lengths, 10)].mean().item()
        501.0
    """
    sizes = as_lengths(lengths)
    if count < 1:
        raise PadlessError(f"{count} samples: at least one is needed")
    many = min(count, len(sizes))
    chosen = np.argsort(sizes, kind="stable")[((np.arange(many) + 0.5) * len(sizes) / many).astype(np.int64)]
    return np.random.default_rng(seed).permutation(chosen)


def at_padding(padding: float, *, length: int, count: int, seed: int = 0) -> np.ndarray:
    """Lengths whose padding to `length` is `padding`: evenly spread around their mean, in random order.

    They reach half of the mean to either side, less where `length` or a single token ends them.

    Returns:
        `int64[count]`, each from 1 to `length`.

    Raises:
        PadlessError: When no lengths can have this padding.

    Example:
        >>> lengths = at_padding(0.9, length=4096, count=64)
        >>> f"{1 - lengths.mean() / 4096:.3f}", lengths.min().item(), lengths.max().item()
        ('0.900', 208, 611)
    """
    mean = (1 - padding) * length
    if not (0 <= padding < 1 and mean >= 1 and count >= 1):
        raise PadlessError(f"{count} samples of at most {length} tokens cannot have {padding:.1%} padding")
    reach = min(0.5 * mean, length - mean, mean - 1)
    steps = (np.arange(count) + 0.5) / count * 2 - 1
    sizes = np.diff(np.round(np.cumsum([0.0, *(mean + reach * steps)]))).astype(np.int64)  # the total stays exact
    return np.random.default_rng(seed).permutation(sizes.clip(1, length))


def _cut(order: np.ndarray, batch: int) -> tuple[np.ndarray, ...]:
    if batch < 1:
        raise PadlessError(f"batches of {batch} samples: at least one is needed")
    return tuple(order[start : start + batch] for start in range(0, len(order), batch))


def _to_longest(sizes: np.ndarray, groups: tuple[np.ndarray, ...]) -> Work:
    widths = tuple(int(sizes[group].max()) for group in groups)
    return Work(kind="padded", groups=groups, widths=widths, lengths=sizes)
