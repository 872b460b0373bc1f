"""One check per file; the table gives their names and the order in which they run.

Later checks read the results of earlier ones, so that one fault is named once.
"""

import importlib
from collections.abc import Callable
from typing import Any

# Name -> what it asks, in one line.
CHECKS: dict[str, str] = {
    "traps": "known traps in the call, seen before anything runs",
    "isolation": "change one segment: does any other move?",
    "gradients": "gradient of one segment's outputs by the others' embeddings: is it zero?",
    "positions": "do positions restart, and does this architecture care?",
    "targets": "which positions are trained, and on which tokens?",
    "parity": "logits, loss and parameter gradients: packed as alone?",
    "denominator": "accumulation steps and ranks: same loss and gradients as one batch?",
    "padding": "do padded slots matter to anything real?",
    "state": "does anything pass between calls, or through recurrent layers?",
}


def find(name: str) -> Callable[[Any], Any]:
    """The function of a check: `check(context) -> CheckResult`."""
    return importlib.import_module(f"padless.auditing.checks.{name}").check
