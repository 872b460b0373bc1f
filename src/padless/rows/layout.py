"""Where segments lie in the slots of a batch, and how padding is cut up.

A batch has T slots. Rows follow each other; inside a row segments follow each other, each rounded up to a multiple of
`align`; what is left of the row is its tail. All of this is arithmetic on a few offsets per segment.
"""

from dataclasses import dataclass

import numpy as np

from padless.errors import PadlessError

PAD_SEGMENT = 128
"""Longest piece of padding, in slots. Padding that a kernel must cover, or whose boundaries a framework reads off the
positions, comes as pieces of at most this length, so that attention over padding is never quadratic in its length."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The slots of a batch.

    Attributes:
        lengths: int64[S], real tokens per segment.
        starts: int64[S + 1], first slot of each segment, then the end of the last one's aligned extent.
        row_offsets: int64[R + 1], row r holds segments `row_offsets[r]:row_offsets[r + 1]`.
        slots: T.
    """

    lengths: np.ndarray
    starts: np.ndarray
    row_offsets: np.ndarray
    slots: int

    @property
    def dense(self) -> bool:
        """Whether real tokens are exactly the first slots, without a gap."""
        return int(self.starts[-1]) == int(self.lengths.sum())


def lay_out(
    lengths: np.ndarray,
    row_offsets: np.ndarray,
    *,
    capacity: int | None = None,
    align: int = 1,
    multiple: int = 1,
    slots: int | None = None,
) -> Layout:
    """Place segments of `lengths` in rows.

    Args:
        lengths: int[S], real tokens per segment, all positive.
        row_offsets: int[R + 1], which segments are in which row.
        capacity: Slots of every row; the tail of each row is padded up to it. `None`: rows end with their last segment.
        align: Each segment takes a multiple of this many slots.
        multiple: T is rounded up to a multiple of this.
        slots: T itself, for static shapes.

    Raises:
        PadlessError: When a row holds more than `capacity`, or the batch more than `slots`; the message names the row.

    Example:
        >>> lay_out(np.array([3, 2, 4]), np.array([0, 2, 3]), capacity=8, align=2).starts
        array([ 0,  4,  8, 12])
    """
    for name, value in {"capacity": capacity, "align": align, "pad_to_multiple": multiple}.items():
        if value is not None and value < 1:
            raise PadlessError(f"{name}={value} holds no slot; give at least 1")
    aligned = -(-lengths // align) * align
    ends = np.cumsum(aligned)
    before = np.concatenate([[0], ends])[row_offsets]
    row_slots = np.diff(before)
    starts = np.concatenate([[0], ends])
    if capacity is not None:
        _refuse_overfull(row_slots, capacity, align)
        shift = np.arange(len(row_slots)) * capacity - before[:-1]
        starts[:-1] += np.repeat(shift, np.diff(row_offsets))
        starts[-1] = starts[-2] + aligned[-1]
        used = len(row_slots) * capacity
    else:
        used = int(before[-1])
    total = -(-used // multiple) * multiple if slots is None else slots
    if used > total:
        over = int(np.searchsorted(before, total, side="right")) - 1
        raise PadlessError(
            f"static=({total:,} tokens, ...) is too small: the batch takes {used:,} slots and row {over} is the first "
            f"that does not fit; give fewer rows or more tokens"
        )
    return Layout(lengths=lengths, starts=starts, row_offsets=row_offsets, slots=total)


def _refuse_overfull(row_slots: np.ndarray, capacity: int, align: int) -> None:
    if capacity % align:
        raise PadlessError(
            f"capacity={capacity} is no multiple of align={align}, so the second row would start unaligned; "
            f"give capacity={-(-capacity // align) * align}"
        )
    over = np.flatnonzero(row_slots > capacity)
    if len(over):
        raise PadlessError(
            f"row {over[0]} takes {row_slots[over[0]]:,} slots (align={align}) and capacity is {capacity:,} "
            f"({len(over)} of {len(row_slots)} rows are too long); plan with the same capacity and align"
        )


def cover(
    starts: np.ndarray, lengths: np.ndarray, slots: int, *, longest: int = PAD_SEGMENT, most: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Cut all T slots into pieces: every segment, and every run of padding in pieces of at most `longest` slots.

    Args:
        starts: int[S], first slot of each segment.
        lengths: int[S], real tokens of each segment.
        slots: T.
        longest: Longest piece of padding.
        most: For static shapes, the most segments that there may ever be: empty pieces at the end make the number of
            pieces one that depends on `most`, `slots` and `longest` alone.

    Returns:
        `(cuts, ids)`: int64[P + 1] from 0 to T, and int32[P] which segment (1..S) a piece is, 0 for padding.

    Example:
        >>> cuts, ids = cover(np.array([0, 4]), np.array([3, 2]), 9, longest=2)
        >>> cuts, ids
        (array([0, 3, 4, 6, 8, 9]), array([1, 0, 2, 0, 0], dtype=int32))
    """
    cuts, ids = _cover(starts, lengths, slots, longest)
    if most is None:
        return cuts, ids
    # Each segment has at most one gap behind it, and a gap of g slots is at most 1 + g // longest pieces.
    empty = 2 * most + slots // longest - len(ids)
    return np.concatenate([cuts, np.full(empty, slots)]), np.concatenate([ids, np.zeros(empty, dtype=np.int32)])


def _cover(starts: np.ndarray, lengths: np.ndarray, slots: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
    ends = starts + lengths
    gaps = np.append(starts[1:], slots) - ends
    ids = np.arange(1, len(starts) + 1, dtype=np.int32)
    if not gaps.any():
        return np.append(starts, slots), ids
    pieces = -(-gaps // longest)
    per_segment = pieces + 1
    first = np.cumsum(per_segment) - per_segment
    cuts = np.empty(int(per_segment.sum()) + 1, dtype=np.int64)
    covered_ids = np.zeros(len(cuts) - 1, dtype=np.int32)
    owner = np.repeat(np.arange(len(starts)), per_segment)
    nth_piece = np.arange(len(owner)) - first[owner] - 1
    cuts[:-1] = ends[owner] + nth_piece * longest
    cuts[first] = starts
    cuts[-1] = slots
    covered_ids[first] = ids
    return cuts, covered_ids
