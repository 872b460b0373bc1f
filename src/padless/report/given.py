"""The two files that a report may be given: what `padless bench` and `padless audit` wrote.

Keys that are not listed here are left unread, and sections that are absent are left out of the report; a file that
holds nothing to show is refused.
"""

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from padless.errors import PadlessError

__all__ = ["Arm", "Audit", "Bench", "Check", "Regime", "Saving", "read_audit", "read_bench"]


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One way of training on the same real tokens.

    Attributes:
        name: e.g. `"padded"`.
        seconds: Median of a step.
        real_tokens_per_second: Padding is not counted.
        peak_memory: Bytes.
        ratio: Throughput over that of the first arm; follows from the throughputs when it is absent.
        note: Anything a reader should know, e.g. why it could not run.
    """

    name: str
    seconds: float | None = None
    real_tokens_per_second: float | None = None
    peak_memory: float | None = None
    ratio: float | None = None
    note: str = ""


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """A point of the savings curve: padding removed, and the time that saved, both as fractions."""

    padding: float
    time_saved: float


class Regime(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds this model at these lengths.

    Attributes:
        name: e.g. `"projections"` or `"attention"`.
        constant, linear, quadratic: `seconds = constant + linear * tokens + quadratic * sum(length ** 2)`.
        error: Relative error of that prediction against measurement.
        advice: What other measures would still give, a sentence each.
    """

    name: str
    constant: float | None = None
    linear: float | None = None
    quadratic: float | None = None
    error: float | None = None
    advice: tuple[str, ...] = ()


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """What `padless bench step --json` prints, and `savings` and `regime` in part."""

    arms: tuple[Arm, ...] = ()
    savings: tuple[Saving, ...] = ()
    regime: Regime | None = None
    ideal_ratio: float | None = None
    machine: str = ""
    date: str = ""
    model: str = ""
    data: str = ""
    command: str = ""

    def ratio_of(self, arm: Arm) -> float | None:
        """Throughput of an arm over that of the first one."""
        first = self.arms[0].real_tokens_per_second
        if arm.ratio is not None or not first or arm.real_tokens_per_second is None:
            return arm.ratio
        return arm.real_tokens_per_second / first

    def best(self) -> tuple[Arm, float] | None:
        """The arm with the highest ratio."""
        rated = [(arm, ratio) for arm in self.arms if (ratio := self.ratio_of(arm)) is not None]
        return max(rated, key=lambda pair: pair[1]) if rated else None


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check of an audit; `padless.auditing.CheckResult` says what each field means."""

    name: str
    verdict: str
    finding: str
    measured: float | None = None
    tolerance: float | None = None
    mechanism: str = ""
    where: str = ""
    remedy: str = ""
    notes: tuple[str, ...] = ()


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What `padless audit --json` prints."""

    subject: str
    results: tuple[Check, ...]

    def count(self, verdict: str) -> int:
        """Checks with this verdict."""
        return sum(check.verdict == verdict for check in self.results)


def read_bench(path: str | Path) -> Bench:
    """Read a file of `padless bench step --json`.

    Raises:
        PadlessError: When it cannot be read, or holds nothing that was measured.
    """
    bench = _read(Path(path), Bench, "padless bench step --json")
    if not bench.arms and not bench.savings and bench.regime is None:
        raise PadlessError(
            f"{path} holds no arms, no savings curve and no regime; expected what `padless bench step --json` prints"
        )
    return bench


def read_audit(path: str | Path) -> Audit:
    """Read a file of `padless audit --json`.

    Raises:
        PadlessError: When it cannot be read, or is something else.
    """
    return _read(Path(path), Audit, "padless audit --json")


Kind = TypeVar("Kind", bound=msgspec.Struct)


def _read(path: Path, kind: type[Kind], command: str) -> Kind:
    try:
        values: Any = json.loads(path.read_text("utf-8"), parse_constant=_finite_only)
        return msgspec.convert(values, kind)
    except OSError as error:
        raise PadlessError(f"cannot read {path}: {error.strerror}; make it with `{command} > {path}`") from error
    except (ValueError, RecursionError) as error:
        raise PadlessError(f"{path} is not what `{command}` prints: {error}") from error


def _finite_only(name: str) -> None:
    """NaN and infinities, which Python writes and JSON does not know, are numbers that were not measured."""
