"""How many episodes it takes to see a drop in success rate: the sober part of "barely moved"."""

import math
from dataclasses import dataclass
from statistics import NormalDist

from padless.errors import PadlessError


@dataclass(frozen=True, kw_only=True)
class Power:
    """What so many episodes in each of two arms can tell.

    Attributes:
        success: Success rate of the arm that is compared with.
        drop: The difference to be seen, both as fractions.
        episodes: Episodes in each arm.
        half_width: Of the confidence interval of the difference at that many episodes.
        confidence: Of the interval, and of the two-sided test.
        power: Chance to see the drop if it is there; 0 where none was asked for.
    """

    success: float
    drop: float
    episodes: int
    half_width: float
    confidence: float
    power: float


def difference_half_width(first: float, second: float, episodes: int, *, confidence: float = 0.95) -> float:
    """Half of the confidence interval of a difference of two success rates, each measured on `episodes` episodes.

    The normal approximation, which is a little narrow for rates near 1 on few episodes.

    Example:
        >>> [f"{100 * difference_half_width(0.984, 0.982, n):.1f} points" for n in (500, 2000)]
        ['1.6 points', '0.8 points']
    """
    _check(success=first, second=second, confidence=confidence)
    if episodes < 1:
        raise PadlessError(f"{episodes} episodes tell nothing; give at least 1 per arm")
    spread = (first * (1 - first) + second * (1 - second)) / episodes
    return _z(confidence) * math.sqrt(spread)


def episodes_needed(success: float, drop: float, *, confidence: float = 0.95, power: float = 0.8) -> Power:
    """Episodes per arm that a two-sided test of two proportions needs to see a drop in success rate.

    Args:
        success: Success rate before, 0 to 1.
        drop: The smallest drop that matters, as a fraction: 0.01 is one point.
        confidence: 1 - the chance to see a drop that is not there.
        power: The chance to see it when it is there.

    Raises:
        PadlessError: When rates are no rates.

    Source:
        The sample size of two independent proportions (Fleiss, Statistical Methods for Rates and Proportions, ch. 4).

    Example:
        >>> episodes_needed(0.984, 0.015).episodes, episodes_needed(0.984, 0.002).episodes
        (1600, 65581)
    """
    after = success - drop
    _check(success=success, after=after, confidence=confidence, power=power)
    if not drop > 0:
        raise PadlessError(f"a drop of {drop} needs no seeing; give a fraction above 0, such as 0.01 for one point")
    mean = (success + after) / 2
    both = _z(confidence) * math.sqrt(2 * mean * (1 - mean))
    each = NormalDist().inv_cdf(power) * math.sqrt(success * (1 - success) + after * (1 - after))
    episodes = math.ceil(((both + each) / drop) ** 2)
    return Power(
        success=success,
        drop=drop,
        episodes=episodes,
        half_width=difference_half_width(success, after, episodes, confidence=confidence),
        confidence=confidence,
        power=power,
    )


def _z(confidence: float) -> float:
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def _check(**rates: float) -> None:
    for name, value in rates.items():
        strict = name in ("confidence", "power")
        if not 0 <= value <= 1 or (strict and not 0 < value < 1):
            raise PadlessError(f"{name}={value} is no fraction between 0 and 1 (98.4 % is 0.984)")
