"""What becomes of samples longer than a row, by a policy that was named; everything is counted."""

from dataclasses import dataclass

import numpy as np

from padless.errors import PadlessError
from padless.lengths.checks import first_few
from padless.planning.spec import PlanSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class Pieces:
    """What is to be placed whole: one piece per sample, or several of a split one.

    Attributes:
        lengths: int[M] tokens of each piece, in data order.
        sample_ids: int64[M] or None where piece i is sample i.
        starts: int64[M] or None where every piece is the beginning of its sample.
        truncated_samples: Samples that lost their end, and
        truncated_tokens: how many tokens that was.
        dropped_samples: Samples left out, and
        dropped_tokens: their tokens.
        split_samples: Samples of several pieces.
    """

    lengths: np.ndarray
    sample_ids: np.ndarray | None = None
    starts: np.ndarray | None = None
    truncated_samples: int = 0
    truncated_tokens: int = 0
    dropped_samples: int = 0
    dropped_tokens: int = 0
    split_samples: int = 0

    @property
    def taken(self) -> dict[str, int]:
        """What the policy did, by the names of `Accounting`."""
        names = ("truncated_samples", "truncated_tokens", "dropped_samples", "dropped_tokens", "split_samples")
        return {name: getattr(self, name) for name in names}


def to_pieces(lengths: np.ndarray, spec: PlanSpec, *, cuts: bool = False) -> Pieces:
    """Apply `spec.oversize` to checked lengths [N].

    Args:
        lengths: Tokens of each sample.
        spec: The settings.
        cuts: The strategy cuts samples at row ends anyway, so that none is too long for it.

    Raises:
        PadlessError: The policy is `error` and a sample does not fit, or `drop` left nothing.
    """
    limit = spec.limit
    if int(lengths.max()) <= limit or (cuts and spec.oversize in ("error", "split")):
        return Pieces(lengths=lengths)
    over = np.flatnonzero(lengths > limit)
    if spec.oversize == "error":
        raise PadlessError(
            f"{over.size:,} of {lengths.size:,} samples are longer than {row_of(spec)} ({first_few(over, lengths)}); "
            "choose what becomes of them: oversize (--oversize) truncate, split or drop"
        )
    extra = int(lengths[over].astype(object).sum()) if over.size else 0
    if spec.oversize == "truncate":
        return Pieces(
            lengths=np.minimum(lengths, limit),
            truncated_samples=int(over.size),
            truncated_tokens=extra - int(over.size) * limit,
        )
    if spec.oversize == "drop":
        kept = np.flatnonzero(lengths <= limit)
        if not kept.size:
            raise PadlessError(f"all {lengths.size:,} samples are longer than {row_of(spec)}: dropping leaves nothing")
        return Pieces(lengths=lengths[kept], sample_ids=kept, dropped_samples=int(over.size), dropped_tokens=extra)
    return _split(lengths, limit, int(over.size))


def _split(lengths: np.ndarray, limit: int, split_samples: int) -> Pieces:
    pieces = -(-lengths // limit)
    ids = np.repeat(np.arange(lengths.size), pieces)
    ends = np.cumsum(pieces)
    starts = (np.arange(ends[-1]) - np.repeat(ends - pieces, pieces)) * limit
    return Pieces(
        lengths=np.minimum(lengths[ids] - starts, limit),
        sample_ids=ids,
        starts=starts,
        split_samples=split_samples,
    )


def row_of(spec: PlanSpec) -> str:
    """The room of a row, as errors name it."""
    if spec.limit == spec.capacity:
        return f"a row of {spec.capacity:,}"
    return f"the {spec.limit:,} tokens that fit a row of {spec.capacity:,} aligned to {spec.align}"
