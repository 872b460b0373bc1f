"""`Report`: everything that is shown, read once; as a page, as drawings, as a table for a pull request."""

from dataclasses import dataclass
from pathlib import Path

from padless.corpus import TokenStore
from padless.report.charts import charts
from padless.report.facts import Facts, gather
from padless.report.given import Audit, Bench, read_audit, read_bench
from padless.report.ranks import USUAL_COST, Balance, balance
from padless.report.row import ShownRow, show_row
from padless.report.svg import Chart
from padless.training import Cost

__all__ = ["Report", "make_report"]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What there is to show; equal inputs give equal text.

    Attributes:
        facts: The store and its plan.
        row: A row for the mask inspector.
        balance: Rows over ranks; None when there are fewer rows than ranks.
        bench, audit: What was measured and proven; None when not given.
    """

    facts: Facts
    row: ShownRow
    balance: Balance | None
    bench: Bench | None
    audit: Audit | None

    @property
    def charts(self) -> dict[str, Chart]:
        """Every chart by name."""
        return charts(self.facts, self.balance, self.bench)

    def html(self) -> str:
        """One page that needs nothing but itself."""
        from padless.report.page import page

        return page(self)

    def markdown(self) -> str:
        """A table for a pull request."""
        from padless.report.markdown import markdown

        return markdown(self)


def make_report(
    store: TokenStore | str | Path,
    *,
    capacity: int | None = None,
    bench: str | Path | None = None,
    audit: str | Path | None = None,
    row: int | None = None,
) -> Report:
    """Read what a report shows.

    Args:
        store: A `TokenStore`, or the folder of one.
        capacity: Which saved plan; the only one unless given.
        bench: A file of `padless bench step --json`.
        audit: A file of `padless audit --json`.
        row: Which row the mask inspector shows; one with segments of different lengths unless given.

    Raises:
        PadlessError: When there is no such store, plan or row, or a file is not what it should be.

    Example:
        >>> import tempfile
        >>> from padless import TokenStore, plan
        >>> store = TokenStore.write(tempfile.mkdtemp(), [[5, 6, 7], [8, 9], [1, 2, 3]], vocab_size=10)
        >>> _ = store.add_plan(plan(store.lengths, 5))
        >>> print(make_report(store).markdown().splitlines()[4])
        | rows | 3 | 2 |
    """
    store = store if isinstance(store, TokenStore) else TokenStore(store)
    measured = None if bench is None else read_bench(bench)
    plan = store.plan(capacity)
    return Report(
        facts=gather(store, plan),
        row=show_row(store, plan, row),
        balance=balance(plan, cost=_cost(measured)),
        bench=measured,
        audit=None if audit is None else read_audit(audit),
    )


def _cost(bench: Bench | None) -> Cost:
    """The cost of a row as it was measured, where it was."""
    regime = None if bench is None else bench.regime
    if regime is None or not regime.linear or regime.linear < 0 or (regime.quadratic or 0.0) < 0:
        return USUAL_COST
    return Cost(linear=regime.linear, quadratic=regime.quadratic or 0.0)
