"""Time several ways of doing the same thing, taking turns, so that a busy moment of the machine hits all of them."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from padless.errors import PadlessError


@dataclass(frozen=True)
class Timing:
    """Seconds of every repetition, in the order they were taken.

    Example:
        >>> Timing((3.0, 1.0, 2.0)).median
        2.0
    """

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """What is reported: half of the repetitions took longer."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Slowest minus fastest, as a fraction of the median: how far the machine can be trusted."""
        return (max(self.seconds) - min(self.seconds)) / self.median if self.median else 0.0


def interleaved(
    ways: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    synchronize: Callable[[], object] | None = None,
    progress: Callable[[str], object] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Run every way once, then every way once more, `repeats` times, and time each run.

    Args:
        ways: What to time, by name. Warm them up before: this times every run it makes.
        repeats: Rounds. Every second round goes backwards, so that no way always follows the same neighbour.
        synchronize: Waits until a device has finished, e.g. `torch.cuda.synchronize`.
        progress: Told the name of a way before it runs.
        clock: Seconds, ever rising.

    Returns:
        The timing of each way, in the order of `ways`.

    Raises:
        PadlessError: When there is nothing to time.

    Example:
        >>> timings = interleaved({"short": lambda: None, "long": lambda: sum(range(10**5))}, repeats=3)
        >>> len(timings["short"].seconds), timings["short"].median < timings["long"].median
        (3, True)
    """
    if repeats < 1 or not ways:
        raise PadlessError(f"{len(ways)} ways x {repeats} repeats: there is nothing to time; give at least one of each")
    wait = synchronize or (lambda: None)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(repeats):
        order = list(ways) if number % 2 == 0 else list(ways)[::-1]
        for name in order:
            if progress is not None:
                progress(name)
            wait()
            start = clock()
            ways[name]()
            wait()
            taken[name].append(clock() - start)
    return {name: Timing(tuple(seconds)) for name, seconds in taken.items()}
