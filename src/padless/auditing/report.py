"""What an audit found: one result per check, and what follows from all of them.

Nothing here needs torch, so reports can be read, compared and shown anywhere.
"""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from padless.auditing.mechanisms import MECHANISMS
from padless.errors import PadlessError, ViolationError

Verdict = Literal["proven", "violated", "undecided", "not-applicable"]
VERDICTS: tuple[Verdict, ...] = ("proven", "violated", "undecided", "not-applicable")

CLEAN, VIOLATED, UNDECIDED = 0, 1, 3


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The outcome of one check.

    Attributes:
        name: The check, e.g. `"isolation"`.
        verdict: `proven`, `violated`, `undecided` (says why) or `not-applicable` (says why).
        finding: One sentence: what was seen.
        measured: The number that decided, or None where nothing was measured.
        tolerance: What `measured` was allowed to be. 0.0 means bitwise.
        mechanism: A code of `MECHANISMS` when violated, else "".
        where: The first module at which it shows, e.g. `"layers.0.attn"`, or "".
        notes: Further things worth knowing; none of them changes the verdict.
        details: Numbers and matrices for machines; JSON-ready.
        seconds: Wall time of the check.
    """

    name: str
    verdict: Verdict
    finding: str
    measured: float | None = None
    tolerance: float | None = None
    mechanism: str = ""
    where: str = ""
    notes: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise PadlessError(f"verdict {self.verdict!r}: expected one of {', '.join(VERDICTS)}")
        if (self.verdict == "violated") != bool(self.mechanism):
            raise PadlessError(f"{self.name}: a violated check names its mechanism, and only a violated one")
        if self.mechanism and self.mechanism not in MECHANISMS:
            raise PadlessError(f"{self.name}: unknown mechanism {self.mechanism!r}")

    @property
    def remedy(self) -> str:
        """What to do about it; empty unless violated."""
        return MECHANISMS[self.mechanism].remedy if self.mechanism else ""


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """All results of one audit, in the order in which the checks ran.

    Example:
        >>> clean = AuditReport(subject="toy", results=(CheckResult(name="targets", verdict="proven",
        ...                                                          finding="40 of 40 targets are right"),))
        >>> clean.exit_code
        0
        >>> clean.assert_clean()
    """

    subject: str
    results: tuple[CheckResult, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[CheckResult]:
        return iter(self.results)

    def __getitem__(self, name: str) -> CheckResult:
        for result in self.results:
            if result.name == name:
                return result
        raise KeyError(f"no check {name!r} in this report; it has {', '.join(r.name for r in self.results)}")

    def of(self, verdict: Verdict) -> tuple[CheckResult, ...]:
        """The results with one verdict."""
        return tuple(result for result in self.results if result.verdict == verdict)

    @property
    def exit_code(self) -> int:
        """0: all proven; 1: something leaks or is wrong; 3: something could not be decided."""
        if self.of("violated"):
            return VIOLATED
        decided = bool(self.of("proven")) and not self.of("undecided")
        return CLEAN if decided else UNDECIDED

    def assert_clean(self) -> None:
        """Raise unless every check that applies is proven.

        Raises:
            ViolationError: When a check is violated or undecided. An undecided check is no proof, so it fails too.
        """
        if self.exit_code == CLEAN:
            return
        bad = self.of("violated") + self.of("undecided")
        lines = [f"  {r.name}: {r.verdict}: {r.finding} {r.remedy}".rstrip() for r in bad]
        raise ViolationError(f"{self.subject} is not proven clean:\n" + "\n".join(lines or ["  nothing applied"]))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready picture of the report."""
        return {
            "subject": self.subject,
            "exit_code": self.exit_code,
            "settings": self.settings,
            "results": [dataclasses.asdict(result) | {"remedy": result.remedy} for result in self.results],
        }

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(self.to_dict(), indent=2)
