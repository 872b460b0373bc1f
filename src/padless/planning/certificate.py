"""How good a plan is, and what proves it."""

from dataclasses import dataclass

from padless.errors import PadlessError
from padless.lengths import Bound


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Rows against a proved lower bound.

    Attributes:
        rows: Rows of the plan.
        lower_bound: No plan of the same segments has fewer rows.
        bound_by: What proves it: `L1`, `L2`, `max-segments` or `LP`.
    """

    rows: int
    lower_bound: int
    bound_by: str

    def __post_init__(self) -> None:
        if self.rows < self.lower_bound:
            raise PadlessError(
                f"a plan of {self.rows} rows is below its lower bound {self.lower_bound} ({self.bound_by}): "
                "one of the two is wrong"
            )

    @classmethod
    def of(cls, rows: int, bound: Bound) -> "Certificate":
        """Set a plan's rows against a bound."""
        return cls(rows=rows, lower_bound=bound.rows, bound_by=bound.by)

    @property
    def gap(self) -> float:
        """The most by which the rows can exceed the optimum, as a fraction of it; 0 proves the plan optimal."""
        return (self.rows - self.lower_bound) / self.lower_bound if self.lower_bound else 0.0

    def __str__(self) -> str:
        if self.rows == self.lower_bound:
            return f"{self.rows:,} rows, optimal: the bound {self.bound_by} is met"
        return f"{self.rows:,} rows, at most {self.gap:.4%} above the bound {self.lower_bound:,} ({self.bound_by})"
