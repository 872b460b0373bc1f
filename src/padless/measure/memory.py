"""Peak memory of one run: what a way of training needs on top of what was there before it."""

import contextlib
import ctypes
import gc
import os
from collections.abc import Callable
from pathlib import Path

PROCESS = Path("/proc/self")
RESET_PEAK = "5"  # proc_pid_clear_refs(5): the peak resident size starts again from the present one


def peak_memory(run: Callable[[], object], device: str = "cpu") -> int | None:
    """Bytes that `run` needed at its worst moment, above those held before it.

    On a CUDA device this is what torch's allocator handed out. On the CPU it is resident memory, whose peak Linux
    counts for the process; free pages are given back to the system first, so that a run cannot hide in what an
    earlier one left behind.

    Args:
        run: What to measure; it is called once.
        device: `"cpu"` or a CUDA device.

    Returns:
        Bytes, or None where the system cannot tell (`run` is called all the same).

    Example:
        >>> import numpy as np
        >>> peak = peak_memory(lambda: np.ones(4_000_000).sum())  # 32 MB
        >>> peak is None or 30e6 < peak < 40e6
        True
    """
    if device.startswith("cuda"):
        return _cuda(run, device)
    gc.collect()
    _trim()
    before = _resident() if _reset_peak() else None
    run()
    peak = _status("VmHWM")
    return None if before is None or peak is None else max(peak - before, 0)


def _cuda(run: Callable[[], object], device: str) -> int:
    import torch

    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _trim() -> None:
    """Give freed heap pages back (glibc; other libraries have no such call, and keep what they keep)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _reset_peak() -> bool:
    try:
        (PROCESS / "clear_refs").write_text(RESET_PEAK)
    except OSError:
        return False
    return True


def _resident() -> int | None:
    try:
        return int((PROCESS / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _status(field: str) -> int | None:
    try:
        lines = (PROCESS / "status").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(found[0]) * 1024 if found else None
