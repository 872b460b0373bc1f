"""Check a plan against the lengths it was made from, trusting nothing it says of itself."""

import numpy as np

from padless.errors import ViolationError
from padless.lengths import as_lengths
from padless.planning.fingerprint import plan_fingerprint
from padless.planning.result import Plan

SHOWN = 3


def check_plan(plan: Plan, lengths: np.ndarray) -> None:
    """Check promises 1 to 3 on a plan that exists.

    Every sample is placed once, or split into pieces that add up, or truncated or dropped by the policy that the
    spec names; no row is above its capacity, alignment included, or above `max_segments`; the books and the
    fingerprint are those of these lengths.

    Args:
        plan: The plan.
        lengths: The lengths of all samples, [N].

    Raises:
        ViolationError: With the first violations of every kind found.

    Example:
        >>> from padless.planning import plan
        >>> check_plan(plan([3, 4], capacity=8), np.array([3, 4]))
        >>> check_plan(plan([3, 4], capacity=8), np.array([3, 5]))
        Traceback (most recent call last):
            ...
        padless.errors.ViolationError: the plan does not hold: ...
    """
    lengths = as_lengths(lengths)
    found = [*_shape(plan, lengths.size)]
    if not found:
        found = [*_rows(plan), *_samples(plan, lengths), *_books(plan, lengths)]
    if found:
        raise ViolationError("the plan does not hold: " + "; ".join(found))


def _say(what: str, bad: np.ndarray, *values: np.ndarray) -> list[str]:
    if not bad.size:
        return []
    shown = ", ".join("/".join(str(v) for v in (i, *(array[i] for array in values))) for i in bad[:SHOWN].tolist())
    return [f"{bad.size:,} {what} ({shown}{', ...' if bad.size > SHOWN else ''})"]


def _shape(plan: Plan, samples: int) -> list[str]:
    ids = plan.sample_ids
    return [
        *_say("rows without a segment", np.flatnonzero(np.diff(plan.row_offsets) < 1)),
        *_say(f"segments of samples outside 0..{samples - 1} (segment/id)", _outside(ids, samples), ids),
        *_say("segments without a token (segment/length)", np.flatnonzero(plan.lengths < 1), plan.lengths),
        *_say("segments that start before their sample (segment/start)", np.flatnonzero(plan.starts < 0), plan.starts),
    ]


def _outside(ids: np.ndarray, samples: int) -> np.ndarray:
    return np.flatnonzero((ids < 0) | (ids >= samples))


def _rows(plan: Plan) -> list[str]:
    align, widths = plan.spec.align, np.diff(plan.row_offsets)
    used = np.add.reduceat(-(-plan.lengths.astype(np.int64) // align) * align, plan.row_offsets[:-1])
    found = _say(f"rows above the capacity {plan.capacity} (row/slots)", np.flatnonzero(used > plan.capacity), used)
    if plan.spec.max_segments is not None:
        many = np.flatnonzero(widths > plan.spec.max_segments)
        found += _say(f"rows above {plan.spec.max_segments} segments (row/segments)", many, widths)
    return found


def _samples(plan: Plan, lengths: np.ndarray) -> list[str]:
    """Pieces of a sample, put in order, must follow each other without hole or overlap."""
    limit, policy, cuts = plan.spec.limit, plan.spec.oversize, plan.spec.strategy == "concat"
    order = np.lexsort((plan.starts, plan.sample_ids)) if plan.starts.any() else np.argsort(plan.sample_ids)
    ids, starts = plan.sample_ids[order], plan.starts[order]
    ends = starts + plan.lengths[order]
    first = np.concatenate([[True], ids[1:] != ids[:-1]])
    expected = np.where(first, 0, np.concatenate([[0], ends[:-1]]))
    wrong = np.flatnonzero(starts != expected)
    found = _say("segments that overlap or leave a hole in their sample (sample)", np.unique(ids[wrong]))
    if found:
        return found
    placed = np.zeros(lengths.size, np.int64)
    np.add.at(placed, ids, plan.lengths[order])
    pieces = np.bincount(ids, minlength=lengths.size)
    over = lengths > limit
    promised = lengths.astype(np.int64)
    if policy == "truncate":
        promised = np.minimum(promised, limit)
    elif policy == "drop":
        promised = np.where(over, 0, promised)
    what = "samples whose tokens are not all placed once (sample/tokens placed/tokens promised)"
    found = _say(what, np.flatnonzero(placed != promised), placed, promised)
    if not cuts:
        may_split = over if policy == "split" else np.zeros_like(over)
        found += _say("samples split without leave (sample/pieces)", np.flatnonzero((pieces > 1) & ~may_split), pieces)
    return found


def _books(plan: Plan, lengths: np.ndarray) -> list[str]:
    books, sizes = plan.accounting, plan.lengths.astype(np.int64)
    real = int(sizes.sum())
    aligned = int((-(-sizes // plan.spec.align)).sum()) * plan.spec.align
    over = lengths[lengths > plan.spec.limit].astype(object)
    truncated = plan.spec.oversize == "truncate"
    dropped = plan.spec.oversize == "drop"
    facts = {
        "samples": lengths.size,
        "segments": plan.num_segments,
        "rows": plan.num_rows,
        "capacity": plan.capacity,
        "real_tokens": real,
        "alignment_padding": aligned - real,
        "tail_padding": plan.num_rows * plan.capacity - aligned,
        "truncated_samples": over.size * truncated,
        "truncated_tokens": int(over.sum() - over.size * plan.spec.limit) * truncated if over.size else 0,
        "dropped_samples": over.size * dropped,
        "dropped_tokens": int(over.sum()) * dropped if over.size else 0,
        "split_samples": int((np.bincount(plan.sample_ids) > 1).sum()),
        "sum_squares": int(np.dot(sizes, sizes)),
        "segments_per_row_max": int(np.diff(plan.row_offsets).max()),
    }
    found = [
        f"accounting says {name} {getattr(books, name):,}, counted {value:,}"
        for name, value in facts.items()
        if getattr(books, name) != value
    ]
    if plan.certificate.rows != plan.num_rows:
        found.append(f"the certificate is for {plan.certificate.rows:,} rows, there are {plan.num_rows:,}")
    fingerprint = plan_fingerprint(lengths, plan.spec)
    if plan.fingerprint != fingerprint:
        found.append(f"the fingerprint is {plan.fingerprint}, these lengths and this spec give {fingerprint}")
    return found
