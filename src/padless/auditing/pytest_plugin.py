"""A pytest fixture for the user's own CI: `audit_model`. Loaded by pytest in every run, so it imports nothing heavy."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def audit_model() -> Callable[..., Any]:
    """`audit_model(model, collate, loss, ...)`: audit, and fail the test unless everything that applies is proven.

    Takes what `padless.audit` takes and returns the report.
    """

    def run(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        from padless.auditing import audit
        from padless.errors import ViolationError

        report = audit(*args, **options)
        try:
            report.assert_clean()
        except ViolationError as error:
            pytest.fail(str(error), pytrace=False)
        return report

    return run
