"""What cannot be scheduled, said before anything is; and how many micro-batches it takes at least."""

import numpy as np

from padless.errors import PadlessError
from padless.training.scheduling.assignment import Samples
from padless.training.scheduling.spec import SchedulingSpec


def refuse_oversize(samples: Samples, slots: np.ndarray, spec: SchedulingSpec, *, ranks: int | None = None) -> None:
    """Refuse samples that no micro-batch holds.

    Args:
        samples: The samples.
        slots: int64[N], slots that each takes over `ranks` ranks.
        spec: Where they should go.
        ranks: Most ranks that may share a sample; `spec.cp` unless given.

    Raises:
        PadlessError: Names the longest, and the sizes that would hold it.
    """
    ranks = spec.cp if ranks is None else ranks
    room = ranks * spec.max_seqlen_per_rank
    over = np.flatnonzero(slots > room)
    if not len(over):
        return
    i = int(over[slots[over].argmax()])
    unit = spec.unit_of(ranks)
    per_rank = -(-int(slots[i]) // ranks)
    raise PadlessError(
        f"sample {samples.ids[i]} has {samples.lengths[i]:,} tokens, {slots[i]:,} slots in multiples of {unit}, and a "
        f"micro-batch holds max_seqlen_per_rank={spec.max_seqlen_per_rank:,} x {ranks} ranks = {room:,} "
        f"({len(over):,} of {len(samples):,} samples are too long); cut it, or give "
        f"max_seqlen_per_rank={per_rank:,}{_or_wider(int(samples.lengths[i]), spec)}"
    )


def _or_wider(length: int, spec: SchedulingSpec) -> str:
    """The fewest ranks over which a sample fits, as advice; none where a rank holds less than its 2 chunks."""
    if spec.max_seqlen_per_rank < 2:
        return ""
    wider = -(-length // spec.max_seqlen_per_rank)
    while wider * spec.max_seqlen_per_rank < -(-length // spec.unit_of(wider)) * spec.unit_of(wider):
        wider += 1
    return f" or cp={wider}"


def enough(samples: int, microbatches: int, spec: SchedulingSpec) -> bool:
    """Whether every rank has a sample for each of so many micro-batches, or need not have one."""
    return spec.empty == "allow" or samples >= microbatches * spec.dp


def too_few(samples: int, spec: SchedulingSpec) -> PadlessError:
    """The error for a batch in which some rank would have nothing to do in some micro-batch."""
    microbatches = multiple_of(samples // spec.dp + 1, spec)
    return PadlessError(
        f"{samples:,} samples for {spec.dp} data-parallel ranks that need {microbatches} micro-batches each: some "
        f"would be empty, and the ranks that have one would wait for ever; give at least {microbatches * spec.dp:,} "
        "samples a global batch, fewer ranks, or empty='allow' and run padding there"
    )


def fewest_microbatches(owner: np.ndarray, slots: np.ndarray, spec: SchedulingSpec) -> int:
    """The micro-batches that every rank needs at least, for its slots and its samples; a multiple as the spec says."""
    used = np.zeros(spec.dp, np.int64)
    np.add.at(used, owner, slots)
    count = -(-int(used.max()) // spec.capacity)
    if spec.most is not None:
        count = max(count, -(-int(np.bincount(owner).max()) // spec.most))
    return multiple_of(count, spec)


def multiple_of(count: int, spec: SchedulingSpec) -> int:
    """At least `count` micro-batches, a multiple as the spec says."""
    return -(-count // spec.microbatch_multiple) * spec.microbatch_multiple


def for_stages(needed: int, samples: int, spec: SchedulingSpec) -> list[int]:
    """As many micro-batches as stages, where that is more than needed and samples suffice; else nothing."""
    count = multiple_of(spec.pp, spec)
    return [count] if count > needed and samples >= count * spec.dp else []
