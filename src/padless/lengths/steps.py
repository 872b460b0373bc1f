"""What packing does to optimizer steps: fewer steps with more tokens each, unless the batch is made smaller."""

from dataclasses import dataclass

from padless.errors import PadlessError
from padless.lengths.accounting import Accounting


@dataclass(frozen=True, kw_only=True)
class Steps:
    """One epoch at a fixed number of rows per step, before and after packing.

    Attributes:
        rows_per_step: Rows in a global batch.
        steps_before: Steps per epoch with one sample per row.
        steps_after: Steps per epoch packed.
        tokens_before: Real tokens per step before, on average.
        tokens_after: Real tokens per step after, on average.
        rows_for_same_tokens: Rows per step that keep the tokens per step, and with them the learning rate.
    """

    rows_per_step: int
    steps_before: int
    steps_after: int
    tokens_before: float
    tokens_after: float
    rows_for_same_tokens: float


def steps(before: Accounting, after: Accounting, rows_per_step: int) -> Steps:
    """Set an epoch before packing against one after it.

    Args:
        before: Usually `Accounting.padded(lengths, capacity)`.
        after: A plan's accounting.
        rows_per_step: Rows in a global batch.

    Example:
        >>> from padless.planning import plan
        >>> lengths = [512, 512, 1024, 2048] * 8
        >>> found = steps(Accounting.padded(lengths, 2048), plan(lengths, 2048).accounting, rows_per_step=4)
        >>> found.steps_before, found.steps_after, found.rows_for_same_tokens
        (8, 4, 2.0)
    """
    if rows_per_step < 1:
        raise PadlessError(f"a step has at least one row, not {rows_per_step}")
    tokens_before = before.real_tokens / before.rows
    tokens_after = after.real_tokens / after.rows
    return Steps(
        rows_per_step=rows_per_step,
        steps_before=-(-before.rows // rows_per_step),
        steps_after=-(-after.rows // rows_per_step),
        tokens_before=tokens_before * rows_per_step,
        tokens_after=tokens_after * rows_per_step,
        rows_for_same_tokens=rows_per_step * tokens_before / tokens_after,
    )
