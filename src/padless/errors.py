"""What goes wrong, said so that it can be put right.

Every message of padless has up to four parts: what was given, what was expected, what would have gone wrong, what to
do. `PadlessError` is a `ValueError`, so callers who know nothing of padless catch it too.
"""

import importlib.util


class PadlessError(ValueError):
    """Wrong input or wrong use. The command line prints its text as one line and exits with 2."""


class ViolationError(PadlessError):
    """A promise does not hold for data that exists. The command line exits with 1."""


class MissingExtraError(PadlessError, ImportError):
    """An optional feature was asked for without the packages it needs."""


def require(module: str, *, extra: str, feature: str) -> None:
    """Raise unless `module` can be imported, before any work has started.

    Args:
        module: Import name of the package, e.g. `"torch"`.
        extra: The extra of padless that installs it.
        feature: What the user asked for, as the user wrote it.

    Raises:
        MissingExtraError: When the module is not installed.

    Example:
        >>> require("no_such_module", extra="torch", feature="padless audit")
        Traceback (most recent call last):
            ...
        padless.errors.MissingExtraError: padless audit needs no_such_module: pip install 'padless[torch]'
    """
    if importlib.util.find_spec(module) is None:
        raise MissingExtraError(f"{feature} needs {module}: pip install 'padless[{extra}]'")
