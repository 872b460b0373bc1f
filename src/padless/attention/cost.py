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

    launch_us: float = 100.0
    token_us: float = 0.6
    pair_us: float = 0.0092
    gather_us: float = 0.2

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

    def estimate(self, heads: float, calls: int, tokens: int, pairs: int) -> float:
        """`calls` kernel calls on `tokens` queries that see `pairs` keys in all."""
        return calls * self.launch_us + heads * (tokens * self.token_us + pairs * self.pair_us)


def _gpu(launch_us: float, pair_ns: float) -> Cost:
    return Cost(launch_us=launch_us, token_us=pair_ns * 0.05, pair_us=pair_ns * 1e-3, gather_us=pair_ns * 0.1)


# Measured here: CPU. The CUDA ones only put the kernels in the order of their authors' published speeds.
DEFAULTS: dict[str, dict[str, Cost]] = {
    "cpu": {
        "segmented": Cost(),
        "dense": Cost(launch_us=300.0, pair_us=0.0098),
        "flex": Cost(launch_us=5000.0, pair_us=0.1),
        "reference": Cost(launch_us=1000.0, token_us=5.0, pair_us=0.1),
    },
    "cuda": {
        "flash-attn-4": _gpu(80.0, 0.0007),
        "flash-attn-3": _gpu(80.0, 0.0008),
        "flash-attn-2": _gpu(80.0, 0.0014),
        "torch-varlen": _gpu(80.0, 0.0015),
        "transformer-engine": _gpu(200.0, 0.0015),
        "xformers": _gpu(150.0, 0.002),
        "flex": _gpu(150.0, 0.0022),
        "segmented": _gpu(600.0, 0.02),
        "dense": _gpu(100.0, 0.004),
        "reference": _gpu(2000.0, 0.5),
    },
}
ANYWHERE = "cpu"


def path() -> Path:
    """Where calibration is kept: `$PADLESS_ATTENTION_COST`, or the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(os.environ.get("PADLESS_ATTENTION_COST", cache / "padless" / "attention_cost.json"))


def save(device: str, costs: dict[str, Cost], where: Path) -> None:
    """Write the calibration of one device type for later processes; other device types stay."""
    known = _read(where) if where.exists() else {}
    known[device] = {name: asdict(cost) for name, cost in costs.items()}
    where.parent.mkdir(parents=True, exist_ok=True)
    where.write_text(json.dumps(known, indent=2) + "\n")
    machine.cache_clear()


@functools.cache
def machine(device: str) -> dict[str, Cost]:
    """What each backend costs on this machine: calibrated where it was, else the defaults; read once per process.

    Raises:
        PadlessError: When the calibration file is not one.
    """
    costs = dict(DEFAULTS.get(device, DEFAULTS[ANYWHERE]))
    where = path()
    if where.exists():
        try:
            costs |= {name: Cost(**numbers) for name, numbers in _read(where).get(device, {}).items()}
        except TypeError as error:
            raise _damaged(where, error) from error
    return costs


def _read(where: Path) -> dict[str, dict[str, dict[str, float]]]:
    try:
        return json.loads(where.read_text())
    except ValueError as error:
        raise _damaged(where, error) from error


def _damaged(where: Path, error: Exception) -> PadlessError:
    return PadlessError(
        f"{where} holds no attention cost model ({error}): delete it, or run padless bench attention --calibrate"
    )
