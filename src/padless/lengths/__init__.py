"""What the data looks like: the length histogram, lower bounds on rows, waste by cause. numpy only."""

from padless.lengths.accounting import Accounting
from padless.lengths.arithmetic import attention_saved, time_saved
from padless.lengths.bounds import Bound, lower_bound
from padless.lengths.checks import as_lengths
from padless.lengths.histogram import LengthHistogram
from padless.lengths.read import read_lengths
from padless.lengths.steps import Steps, steps

__all__ = [
    "Accounting",
    "Bound",
    "LengthHistogram",
    "Steps",
    "as_lengths",
    "attention_saved",
    "lower_bound",
    "read_lengths",
    "steps",
    "time_saved",
]
