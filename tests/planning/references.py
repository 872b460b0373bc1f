"""Each strategy as its definition says it, one sample at a time; slow and plain."""

from collections.abc import Callable, Iterator
from functools import cache


def rows_of(order: list[int], capacity: int, most: int | None, choose: Callable) -> list[list[int]]:
    """Place samples in `order`; `choose(rows that fit)` names one. A row is `[free, age of its space, samples]`."""
    rows: list[list] = []
    for clock, length in enumerate(order, start=1):
        fits = [row for row in rows if row[0] >= length and (most is None or len(row[2]) < most)]
        if fits:
            row = choose(fits)
        else:
            row = [capacity, 0, []]
            rows.append(row)
        row[0] -= length
        row[1] = clock
        row[2].append(length)
    return [row[2] for row in rows]


def first_fit(lengths: list[int], capacity: int, most: int | None) -> list[list[int]]:
    return rows_of(lengths, capacity, most, lambda fits: fits[0])


def first_fit_decreasing(lengths: list[int], capacity: int, most: int | None) -> list[list[int]]:
    return first_fit(sorted(lengths, reverse=True), capacity, most)


def best_fit_decreasing(lengths: list[int], capacity: int, most: int | None) -> list[list[int]]:
    """The least free space; among equals the row that got to it last."""
    return rows_of(sorted(lengths, reverse=True), capacity, most, lambda fits: min(fits, key=lambda r: (r[0], -r[1])))


def spfhp(lengths: list[int], capacity: int, most: int | None) -> list[list[int]]:
    """The most free space, but a row never takes two of one length at its opening: those open rows of their own."""
    rows: list[list] = []
    for length in sorted(set(lengths), reverse=True):
        left = lengths.count(length)
        while left:
            fits = [row for row in rows if row[0] >= length and (most is None or len(row[1]) < most)]
            if not fits:
                rows += [[capacity - length, [length]] for _ in range(left)]
                break
            widest = max(row[0] for row in fits)
            row = [row for row in fits if row[0] == widest][-1]
            rows.remove(row)
            rows.append([row[0] - length, [*row[1], length]])
            left -= 1
    return [row[1] for row in rows]


def next_fit(lengths: list[int], capacity: int, most: int | None) -> list[list[int]]:
    rows: list[list[int]] = []
    for length in lengths:
        if not rows or sum(rows[-1]) + length > capacity or (most is not None and len(rows[-1]) == most):
            rows.append([])
        rows[-1].append(length)
    return rows


def fewest_rows(lengths: list[int], capacity: int, most: int | None) -> int:
    """The optimum, by trying every way to fill one row with the longest sample left."""

    @cache
    def fewest(left: tuple[int, ...]) -> int:
        if not left:
            return 0
        return 1 + min(fewest(rest) for rest in set(_fill(left[1:], capacity - left[0], most and most - 1)))

    return fewest(tuple(sorted(lengths, reverse=True)))


def _fill(left: tuple[int, ...], space: int, most: int | None) -> Iterator[tuple[int, ...]]:
    yield left
    if most == 0:
        return
    for i, length in enumerate(left):
        if length <= space:
            for rest in _fill(left[i + 1 :], space - length, most and most - 1):
                yield left[:i] + rest
