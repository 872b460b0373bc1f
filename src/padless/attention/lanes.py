"""Independent kernel calls on several CPU threads, one call per thread instead of all threads per call.

A short segment is too little work to share: each call would start and join all threads, and on a busy machine every
join waits for the scheduler. Here each thread takes whole calls from a common list, the longest first, and there is
one join for all of them. Calls too long for that still get all threads, one after the other.
"""

import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

Task = tuple[float, Callable[[], object]]


def run(tasks: Sequence[Task], device: torch.device) -> None:
    """Do all tasks, each given with its cost; they must not write to the same memory."""
    threads = torch.get_num_threads()
    if threads == 1 or device.type != "cpu":
        alone, shared = [task for _, task in tasks], []
    else:
        alone, shared = split(tasks, threads)
    for task in alone:
        task()
    if shared:
        _share(deque(shared), threads)


def split(tasks: Sequence[Task], threads: int) -> tuple[list[Callable[[], object]], list[Callable[[], object]]]:
    """Tasks that need all threads, and those that are better dealt out; the longest first.

    Example:
        >>> alone, shared = split([(1.0, "a"), (9.0, "b"), (1.0, "c"), (1.0, "d"), (1.0, "e")], 2)
        >>> alone, shared
        (['b'], ['a', 'c', 'd', 'e'])
    """
    ordered = sorted(tasks, key=lambda task: -task[0])
    left = sum(cost for cost, _ in ordered)
    at = 0
    while at < len(ordered) and ordered[at][0] > left / (2 * threads):
        left -= ordered[at][0]
        at += 1
    return [task for _, task in ordered[:at]], [task for _, task in ordered[at:]]


def _share(tasks: deque[Callable[[], object]], threads: int) -> None:
    """Each thread takes the next task until none is left; the first error is raised here."""

    @torch.no_grad()
    def work() -> None:
        while True:
            try:
                task = tasks.popleft()
            except IndexError:
                return
            task()

    pool = _pool(threads, os.getpid())
    for lane in [pool.submit(work) for _ in range(threads)]:
        lane.result()


@functools.cache
def _pool(threads: int, _process: int) -> ThreadPoolExecutor:
    """Threads that compute alone; kept, because starting them costs more than a short row. None survives a fork."""
    pool = ThreadPoolExecutor(threads, "padless-attention", initializer=_compute_alone)
    together = threading.Barrier(threads)  # a waiting task cannot be done twice by one thread, so all must start
    for started in [pool.submit(together.wait) for _ in range(threads)]:
        started.result()
    torch.set_num_threads(threads)  # torch takes the last call's number for threads that start later
    return pool


def _compute_alone() -> None:
    torch.get_num_threads()  # torch sets up a thread at its first call; later it would undo the next line
    torch.set_num_threads(1)
