"""Lengths to simulate with: measured ones, drawn again and again, or a named distribution."""

from typing import Any

import numpy as np

from padless.errors import PadlessError
from padless.lengths import LengthHistogram

NAMED = {
    "long-tail": "log-normal:2048:1.5:131072",
    "long-context": "log-normal:1024:1.6:131072",
}
"""`long-tail`: 1 sample in 100 above 67,000 tokens, 3 in 1,000 at the limit. `long-context`: 1 in 100 above 43,000;
rows of 131,072 filled in order are as uneven as those of WLB-LLM's Table 2 (1.44)."""


def is_distribution(name: str) -> bool:
    """Whether this names a distribution, and no file."""
    return name in NAMED or name.startswith("log-normal:")


def draw(source: Any, count: int, *, seed: int = 0) -> np.ndarray:
    """`count` lengths in random order.

    Args:
        source: `"log-normal:MEDIAN:SIGMA:LONGEST"` or a name of `NAMED`; lengths `[N]`, each drawn once before any is
            drawn again; or a `LengthHistogram`, drawn from with replacement.
        count: How many.
        seed: Equal seeds give equal lengths.

    Returns:
        `int64[count]`.

    Raises:
        PadlessError: For a distribution that cannot be.

    Example:
        >>> draw("log-normal:2048:1.5:131072", 4).tolist()
        [2473, 1680, 5352, 2397]
        >>> sorted(draw(np.array([3, 5]), 4).tolist())
        [3, 3, 5, 5]
    """
    rng = np.random.default_rng(seed)
    if isinstance(source, str):
        median, sigma, longest = _parameters(NAMED.get(source, source))
        drawn = np.exp(rng.normal(np.log(median), sigma, count))
        return np.clip(np.rint(drawn), 1, longest).astype(np.int64)
    if isinstance(source, LengthHistogram):
        return rng.choice(source.lengths, count, p=source.counts / source.counts.sum())
    rounds = [rng.permutation(source) for _ in range(-(-count // len(source)))]
    return np.concatenate(rounds)[:count].astype(np.int64)


def _parameters(name: str) -> tuple[float, float, int]:
    kind, *values = name.split(":")
    try:
        median, sigma, longest = float(values[0]), float(values[1]), int(values[2])
    except (ValueError, IndexError):
        median, sigma, longest = 0.0, 0.0, 0
    if kind != "log-normal" or len(values) != 3 or not (1 <= median <= longest and sigma > 0):
        raise PadlessError(
            f"{name!r} is no distribution: expected log-normal:MEDIAN:SIGMA:LONGEST with 1 <= median <= longest and "
            f"sigma > 0, e.g. log-normal:2048:1.5:131072, or one of {', '.join(NAMED)}"
        )
    return median, sigma, longest
