"""Contract tests that users run on their own store: what a loader promises, tried out step by step."""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from padless.errors import ViolationError
from padless.rows import Batch
from padless.training.sampler import RowSampler
from padless.training.state import Stateful


def check_resume(make: Callable[[], Stateful], *, steps: int, every: int = 1) -> None:
    """Save the state after every batch, restore it in a new loader, and compare all that follows.

    States make the round trip through JSON, and each is restored in a loader that never saw the ones before.

    Args:
        make: Makes a loader: a `PackedLoader`, a `RowSampler`, or anything with `state_dict` and `load_state_dict`.
            Called once per comparison, so it may also vary the number of workers from call to call.
        steps: Length of the stream in batches; it may run over several epochs.
        every: Try every n-th position only, for long streams.

    Raises:
        ViolationError: Naming the position of the first batch that differs.

    Example:
        >>> import tempfile
        >>> from padless import PackedDataset, TokenStore, plan
        >>> store = TokenStore.write(tempfile.mkdtemp(), [[5, 6, 7], [8, 9], [1, 2, 3]], vocab_size=10)
        >>> dataset = PackedDataset(store, plan=plan(store.lengths, 5))
        >>> check_resume(lambda: RowSampler(dataset, rows=1, drop_last=True), steps=5)
    """
    whole = make()
    states = [_saved(whole)]
    stream = []
    for batch in itertools.islice(_endless(whole), steps):
        stream.append(batch)
        states.append(_saved(whole))
    if len(stream) < steps:
        raise ViolationError(f"the loader ended after {len(stream)} of {steps} batches")
    for position in range(0, steps, every):
        resumed = make()
        resumed.load_state_dict(json.loads(states[position]))
        rest = itertools.islice(_endless(resumed), steps - position)
        for offset, (expected, found) in enumerate(itertools.zip_longest(stream[position:], rest)):
            if not same(expected, found):
                raise ViolationError(
                    f"a run stopped after {position} batches and resumed differs from one that was not stopped, first "
                    f"at batch {position + offset}: expected {expected!r}, got {found!r}"
                )


def check_coverage(samplers: list[RowSampler], *, epoch: int = 0) -> None:
    """Every row of the plan reaches exactly one rank once, or is among the counted dropped rows.

    Args:
        samplers: One per rank, in order, otherwise equal; none may use `replan`.
        epoch: Which epoch to try.

    Raises:
        ViolationError: When ranks differ in their number of batches, or rows are missing or repeated.
    """
    for sampler in samplers:
        sampler.set_epoch(epoch)
    dropped = samplers[0].epoch_steps(epoch).dropped.tolist()
    batches = [list(sampler) for sampler in samplers]
    if len({len(own) for own in batches}) > 1:
        raise ViolationError(
            f"ranks get {[len(own) for own in batches]} batches in epoch {epoch}; the ones with more would wait for "
            "ever in a collective operation"
        )
    seen = Counter(itertools.chain(dropped, *itertools.chain(*batches)))
    wrong = [row for row in range(samplers[0].dataset.plan.num_rows) if seen[row] != 1]
    if wrong:
        raise ViolationError(
            f"{len(wrong)} rows of epoch {epoch} are not delivered exactly once, e.g. row {wrong[0]}: "
            f"{seen[wrong[0]]} times"
        )


def same(a: Any, b: Any) -> bool:
    """Whether two batches are equal to the last bit, whatever they are made of."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Batch):
        return same(vars(a.numpy()), vars(b.numpy()))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "dtype"):
        first, second = np.asarray(a), np.asarray(b)
        return first.dtype == second.dtype and np.array_equal(first, second)
    return a == b


def _saved(loader: Stateful) -> str:
    return json.dumps(loader.state_dict())


def _endless(loader: Stateful) -> Iterator[Any]:
    while True:
        before = loader.state_dict()
        yield from loader
        if loader.state_dict() == before:
            return
