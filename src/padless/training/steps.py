"""What changes for the optimizer when rows replace samples: steps per epoch, batch in tokens, learning rate."""

import dataclasses
import math

from padless.lengths import Accounting
from padless.lengths.steps import steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """One way to cut an epoch into optimizer steps.

    Attributes:
        rows: Rows per step over all ranks and accumulation steps.
        steps: Optimizer steps per epoch.
        tokens: Real tokens per step, on average.
        growth: `tokens` as a multiple of what a step of samples held.
    """

    rows: int
    steps: int
    tokens: float
    growth: float

    def learning_rate(self, before: float, *, rule: str = "square-root") -> float:
        """The learning rate that a rule gives for the grown batch; with a growth of 1 it is the old one.

        Args:
            before: The learning rate that was right for steps of samples.
            rule: `"square-root"` (Adam and its kin; Malladi et al. 2022, arXiv 2205.10287) or `"linear"` (SGD; Goyal
                et al. 2017, arXiv 1706.02677). Neither is a law: Wang et al. 2024 (arXiv 2410.08081) found that the
                linear rule does not hold under packing. Try it before you trust it.
        """
        return before * {"square-root": math.sqrt(self.growth), "linear": self.growth}[rule]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowSteps:
    """An epoch of samples, and the two ways to train on its rows.

    Attributes:
        batch: Samples per step before.
        steps: Optimizer steps per epoch before.
        tokens: Real tokens per step before, on average.
        samples_per_row: How many samples a row holds, on average.
        same_tokens: As many rows as hold the samples of a step: steps and learning rate stay. At least one row.
        same_rows: As many rows as there were samples: fewer and larger steps.
    """

    batch: int
    steps: int
    tokens: float
    samples_per_row: float
    same_tokens: Choice
    same_rows: Choice


def rows_for_samples(books: Accounting, batch: int) -> RowSteps:
    """Set steps of rows against steps of samples.

    Args:
        books: The accounting of a plan.
        batch: Samples per optimizer step before packing, over all ranks and accumulation steps.

    Example:
        >>> from padless import plan
        >>> found = rows_for_samples(plan([512] * 64, 2048).accounting, batch=16)
        >>> found.steps, found.same_tokens.rows, found.same_tokens.steps, found.same_tokens.growth
        (4, 4, 4, 1.0)
        >>> found.same_rows.steps, found.same_rows.growth, found.same_rows.learning_rate(1e-4)
        (1, 4.0, 0.0002)
    """
    alone = books.one_per_row()
    same_rows = steps(alone, books, batch)
    rows = max(round(same_rows.rows_for_same_tokens), 1)
    same_tokens = steps(alone, books, rows)

    def choice(rows: int, count: int, tokens: float) -> Choice:
        return Choice(rows=rows, steps=count, tokens=tokens, growth=tokens / same_rows.tokens_before)

    return RowSteps(
        batch=batch,
        steps=same_rows.steps_before,
        tokens=same_rows.tokens_before,
        samples_per_row=books.segments / books.rows,
        same_tokens=choice(rows, same_tokens.steps_after, same_tokens.tokens_after),
        same_rows=choice(batch, same_rows.steps_after, same_rows.tokens_after),
    )


def advice(books: Accounting) -> str:
    """One sentence of it, for whoever has just packed: what to do with batch size and learning rate.

    Example:
        >>> from padless import plan
        >>> print(advice(plan([512] * 64, 2048).accounting))
        A row holds 4.0 samples (2,048 tokens). Divide the samples per step by 4.0 to get rows per step, and steps and
        learning rate stay as they were; keep the number instead, and an epoch has 4.0x fewer steps of 4.0x the tokens
    """
    per_row = books.segments / books.rows
    tokens = f"{books.real_tokens / books.rows:,.0f} tokens"
    if books.segments == books.rows:
        return f"A row holds 1 sample ({tokens}): steps per epoch and learning rate stay as they were"
    times = f"{per_row:.1f}"
    return (
        f"A row holds {times} samples ({tokens}). Divide the samples per step by {times} to get rows per step, and "
        f"steps and learning rate stay as they were; keep the number instead, and an epoch has {times}x fewer steps "
        f"of {times}x the tokens"
    )
