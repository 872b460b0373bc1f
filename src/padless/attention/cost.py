"""What segmented attention costs on this machine: four numbers, tunable by `padless bench attention --calibrate`."""

import functools
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from padless.errors import PadlessError


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Microseconds of forward and backward together; sizes are scaled to one head of 64.

    The defaults are those of one thread of a 2025 server core with AVX-512, float32.

    Attributes:
        launch_us: One kernel call and the Python around it, forward and backward.
        token_us: One token of one head, whatever it attends to.
        pair_us: One (query, key) pair of one head.
        gather_us: Copying one token of one head into a padded batch and back, all tensors together.
    """

    launch_us: float = 150.0
    token_us: float = 0.6
    pair_us: float = 0.0092
    gather_us: float = 0.3

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value >= 0:
                raise PadlessError(f"{name} is {value}: a cost is a number of microseconds, 0 or more")

    def kernel(self, heads: float, count: int, nq: int, nk: int) -> float:
        """One call on `count` pieces of `nq` queries and `nk` keys; `heads` in units of one head of 64."""
        return self.launch_us + heads * count * (nq * self.token_us + nq * nk * self.pair_us)

    def gathered(self, heads: float, count: int, nq: int, nk: int) -> float:
        """The same call on a batch that is first copied together."""
        return self.kernel(heads, count, nq, nk) + heads * count * (nq + nk) / 2 * self.gather_us


def path() -> Path:
    """Where calibration is kept: `$PADLESS_ATTENTION_COST`, or the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(os.environ.get("PADLESS_ATTENTION_COST", cache / "padless" / "attention_cost.json"))


def save(cost: Cost, where: Path) -> None:
    """Write a calibration for later processes."""
    where.parent.mkdir(parents=True, exist_ok=True)
    where.write_text(json.dumps(asdict(cost), indent=2) + "\n")


def load(where: Path) -> Cost:
    """Read a calibration.

    Raises:
        PadlessError: When the file is not one.
    """
    try:
        return Cost(**json.loads(where.read_text()))
    except (ValueError, TypeError) as error:
        raise PadlessError(
            f"{where} holds no attention cost model ({error}): delete it, or run padless bench attention --calibrate"
        ) from error


@functools.cache
def machine() -> Cost:
    """The calibration of this machine, or the defaults; read once per process."""
    where = path()
    return load(where) if where.exists() else Cost()
