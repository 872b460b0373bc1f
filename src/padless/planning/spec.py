"""Everything that decides a plan, and nothing else."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from padless.errors import PadlessError

OVERSIZE = ("error", "truncate", "split", "drop")


@dataclass(frozen=True, kw_only=True)
class PlanSpec:
    """The settings of a plan. Equal lengths and equal specs give equal plans, byte for byte.

    Attributes:
        capacity: Slots per row.
        strategy: A name from `padless.planning.STRATEGIES`.
        seed: Which sample of a given length goes to which row, and the order of the rows.
        align: Each segment takes a multiple of this many slots.
        max_segments: Most segments in a row; None for no limit.
        oversize: What becomes of a sample longer than a row: `error`, `truncate` (keep its first tokens), `split`
            (into pieces that add up to it), `drop`.
        window: Plan this many shuffled samples at a time; None plans the whole set at once.
        lookahead: Rows that `online` keeps open.
        max_wait: Samples that may arrive while a row of `online` is open.
        tolerance: `auto` searches for an optimal plan only if the gap to the bound is above this fraction.
        linear: Cost per token, for `balanced`.
        quadratic: Cost per squared segment length, for `balanced`.

    Example:
        >>> PlanSpec(capacity=100, align=128)
        Traceback (most recent call last):
            ...
        padless.errors.PadlessError: align 128 is larger than the capacity 100: not one segment would fit a row
    """

    capacity: int
    strategy: str = "best-fit-decreasing"
    seed: int = 0
    align: int = 1
    max_segments: int | None = None
    oversize: str = "error"
    window: int | None = None
    lookahead: int = 64
    max_wait: int = 4096
    tolerance: float = 1e-4
    linear: float = 1.0
    quadratic: float = 0.0

    def __post_init__(self) -> None:
        for name, least in _WHOLE.items():
            value = getattr(self, name)
            if value is None and name in ("max_segments", "window"):
                continue
            object.__setattr__(self, name, _whole(name, value, least))
        for name in ("tolerance", "linear", "quadratic"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise PadlessError(f"{name} must be a number, 0 or above, not {value!r}")
            object.__setattr__(self, name, float(value))
        if self.capacity > 1 << 31:
            raise PadlessError(f"a capacity of {self.capacity:,} is above 2**31 slots")
        if self.align > self.capacity:
            raise PadlessError(
                f"align {self.align} is larger than the capacity {self.capacity}: not one segment would fit a row"
            )
        if self.oversize not in OVERSIZE:
            raise PadlessError(f"oversize must be one of {', '.join(OVERSIZE)}, not {self.oversize!r}")
        if self.linear == 0 and self.quadratic == 0:
            raise PadlessError("linear and quadratic are both 0: every row would cost nothing")

    @property
    def limit(self) -> int:
        """The longest segment a row can hold, in tokens: the capacity rounded down to whole units of `align`."""
        return self.capacity // self.align * self.align

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for headers and manifests."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "PlanSpec":
        """Read what `to_dict` gave; unknown or missing names are refused."""
        names = {field.name for field in fields(cls)}
        if set(values) != names:
            raise PadlessError(f"a plan's spec has the fields {sorted(names)}, not {sorted(values)}")
        return cls(**values)


_WHOLE = {"capacity": 1, "seed": 0, "align": 1, "max_segments": 1, "window": 1, "lookahead": 1, "max_wait": 1}


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise PadlessError(f"{name} must be a whole number, not {value!r}")
    number = value.__index__()
    if number < least:
        raise PadlessError(f"{name} must be at least {least}, not {number}")
    return number
