"""Isolation, parity, targets, normalisation: the proof, on the user's own model.

Importing this room needs no torch; running an audit does.
"""

from padless.auditing.checks import CHECKS
from padless.auditing.entry import audit
from padless.auditing.mechanisms import MECHANISMS, Mechanism
from padless.auditing.report import AuditReport, CheckResult

__all__ = ["CHECKS", "MECHANISMS", "AuditReport", "CheckResult", "Mechanism", "audit"]
