"""Coarse to fine: lengths rounded up to multiples of a step make a small problem whose answer starts the next one."""

from dataclasses import dataclass

import numpy as np

from padless.planning.optimal.pricing import Columns

COARSEST = 512  # units per row of the first level


@dataclass(frozen=True, eq=False)
class Level:
    """One problem: `lengths` [D'] in units of `step`, `counts`, and the class `of` every length of the finest one."""

    step: int
    capacity: int
    lengths: np.ndarray
    counts: np.ndarray
    of: np.ndarray


def levels(lengths: np.ndarray, counts: np.ndarray, capacity: int) -> list[Level]:
    """Problems from coarse to the given one (step 1), halving the step."""
    step = 1
    while capacity // (step * 2) >= COARSEST and lengths.size > COARSEST:
        step *= 2
    found = []
    while step >= 1:
        rounded, of = np.unique(-(-lengths // step), return_inverse=True)
        if int(rounded[-1]) <= capacity // step:
            totals = np.bincount(of.reshape(-1), weights=None, minlength=rounded.size) * 0
            np.add.at(totals, of.reshape(-1), counts)
            found.append(Level(step, capacity // step, rounded, totals, of.reshape(-1)))
        step //= 2
    return found


def finer_prices(prices: np.ndarray, coarse: Level, fine: Level) -> np.ndarray:
    """Prices of the finer lengths, between those of the coarse ones on a straight line."""
    known = np.concatenate([[0], coarse.lengths * coarse.step])
    return np.interp(fine.lengths * fine.step, known, np.concatenate([[0.0], prices]))


def finer_columns(columns: Columns, uses: np.ndarray, coarse: Level, fine: Level) -> Columns:
    """Rows of finer lengths that use as many samples as the coarse rows do.

    Every coarse length stands for several finer, none longer; they are used up in turn, longest first, so a coarse row
    becomes a few finer ones.
    """
    members = _members(coarse, fine)
    left = fine.counts.astype(float)
    offsets, classes, repeats = [0], [], []
    for column in np.flatnonzero(uses > 1e-9).tolist():
        part = slice(columns.offsets[column], columns.offsets[column + 1])
        slots = np.repeat(columns.classes[part], columns.repeats[part]).tolist()
        amount = float(uses[column])
        while amount > 1e-9:
            chosen, need = _pick(slots, members, left)
            if chosen is None:
                break
            share = min([amount, *(left[c] / n for c, n in need.items())])
            for c, n in need.items():
                left[c] -= share * n
            amount -= share
            ordered = sorted(need.items())
            classes += [c for c, _ in ordered]
            repeats += [n for _, n in ordered]
            offsets.append(len(classes))
    return Columns(np.array(offsets, np.int64), np.array(classes, np.int32), np.array(repeats, np.int32))


def _members(coarse: Level, fine: Level) -> list[list[int]]:
    """Fine classes of each coarse class, shortest first (the end of the list is used first)."""
    pairs = np.unique(np.stack([coarse.of, fine.of], axis=1), axis=0)
    members: list[list[int]] = [[] for _ in range(coarse.lengths.size)]
    for c, f in pairs.tolist():
        members[c].append(f)
    return members


def _pick(slots: list[int], members: list[list[int]], left: np.ndarray) -> tuple[list[int] | None, dict[int, int]]:
    chosen, need = [], {}
    for slot in slots:
        pool = members[slot]
        while pool and left[pool[-1]] <= 1e-9:
            pool.pop()
        if not pool:
            continue  # covered already by earlier rows
        chosen.append(pool[-1])
        need[pool[-1]] = need.get(pool[-1], 0) + 1
    return (chosen or None), need
