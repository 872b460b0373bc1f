"""Small sums that reports get wrong: speed-ups as time, pruned tokens as attention."""

from padless.errors import PadlessError


def time_saved(speedup: float) -> float:
    """The fraction of time that a throughput ratio saves.

    Example:
        >>> f"{time_saved(1.88):.2%}"
        '46.81%'
    """
    if speedup <= 0:
        raise PadlessError(f"a throughput ratio is above 0, not {speedup}")
    return 1 - 1 / speedup


def attention_saved(dropped: float) -> float:
    """The fraction of quadratic attention that leaving out a fraction of the tokens saves.

    Example:
        >>> attention_saved(0.5 * 0.5)  # half of the tokens are visual, half of those are dropped
        0.4375
    """
    if not 0 <= dropped <= 1:
        raise PadlessError(f"a fraction of tokens lies from 0 to 1, not {dropped}")
    return 1 - (1 - dropped) ** 2
