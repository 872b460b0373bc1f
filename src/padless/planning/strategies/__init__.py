"""One strategy per file; the table of their names."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from padless.errors import PadlessError
from padless.planning.patterns import Patterns
from padless.planning.strategies.auto import auto
from padless.planning.strategies.balanced import balanced
from padless.planning.strategies.best_fit_decreasing import best_fit_decreasing
from padless.planning.strategies.concat import concat
from padless.planning.strategies.first_fit import first_fit
from padless.planning.strategies.first_fit_decreasing import first_fit_decreasing
from padless.planning.strategies.next_fit import next_fit
from padless.planning.strategies.nnlshp import nnlshp
from padless.planning.strategies.one_per_row import one_per_row
from padless.planning.strategies.online import online
from padless.planning.strategies.optimal import optimal
from padless.planning.strategies.spfhp import spfhp


@dataclass(frozen=True)
class Strategy:
    """One way to choose which samples share a row.

    Attributes:
        works_on: What it reads. `histogram`: how many samples have which length; ids are dealt out afterwards.
            `order`: the samples in their own order. `tokens`: the samples laid end to end, cut at row ends.
        pack: For `histogram`, `(lengths, counts, room, spec) -> (Patterns, bound by linear program or None)`, in units
            of `spec.align`; for `order`, `(units, room, spec) -> (row_offsets, order)`; for `tokens`,
            `(lengths, spec) -> (row_offsets, samples, starts, lengths)`.
        summary: What it does, in one line.
    """

    works_on: Literal["histogram", "order", "tokens"]
    pack: Callable
    summary: str


def _proofless(function: Callable[..., Patterns]) -> Callable:
    return lambda lengths, counts, room, spec: (function(lengths, counts, room, spec.max_segments), None)


def _balanced(lengths, counts, room, spec):
    # A sample's cost is that of its tokens, and a unit holds `align` of them.
    costs = {"linear": spec.linear * spec.align, "quadratic": spec.quadratic * spec.align**2}
    return balanced(lengths, counts, room, spec.max_segments, **costs), None


def _in_order(function: Callable) -> Callable:
    return lambda units, room, spec: function(units, room, spec.max_segments)


def _online(units, room, spec):
    return online(units, room, spec.max_segments, lookahead=spec.lookahead, max_wait=spec.max_wait)


def _concat(lengths, spec):
    return concat(lengths, spec.limit, spec.align, spec.max_segments)


STRATEGIES = {
    "none": Strategy("histogram", _proofless(one_per_row), "one sample per row: training without packing"),
    "next-fit": Strategy("order", _in_order(next_fit), "in order; a new row when one does not fit (Krell's GREEDY)"),
    "first-fit": Strategy("order", _in_order(first_fit), "in order; the first row opened that still fits"),
    "first-fit-decreasing": Strategy(
        "histogram", _proofless(first_fit_decreasing), "longest first; the first that fits"
    ),
    "best-fit-decreasing": Strategy(
        "histogram", _proofless(best_fit_decreasing), "longest first; the fullest that fits"
    ),
    "spfhp": Strategy("histogram", _proofless(spfhp), "longest first; the emptiest that fits (Krell et al.)"),
    "lpfhp": Strategy("histogram", _proofless(best_fit_decreasing), "Krell et al.'s name of best-fit-decreasing"),
    "nnlshp": Strategy("histogram", _proofless(nnlshp), "rows of up to 3 by least squares (Krell et al.); small rows"),
    "concat": Strategy("tokens", _concat, "end to end, cutting samples at row ends"),
    "optimal": Strategy("histogram", optimal, "column generation, with a proof; needs padless[optimal]"),
    "auto": Strategy("histogram", auto, "the best cheap one; optimal where its gap is above the tolerance"),
    "online": Strategy("order", _online, "as a stream: few open rows, bounded waiting"),
    "balanced": Strategy("histogram", _balanced, "rows of near-equal cost, for a cost that grows with the square"),
}


def find_strategy(name: str) -> Strategy:
    """The strategy of that name.

    Raises:
        PadlessError: There is none; the message lists the names.
    """
    if name not in STRATEGIES:
        raise PadlessError(f"no strategy is called {name!r}; there are {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
