"""Where and with what something was measured: a number without it cannot be compared with another."""

import datetime
import os
import platform
from pathlib import Path


def machine(device: str = "cpu") -> str:
    """Processor or GPU, cores, threads in use, Python and torch, in one line."""
    import torch

    software = f"Python {platform.python_version()}, torch {torch.__version__}"
    if device.startswith("cuda"):
        return f"{torch.cuda.get_device_name(device)}, {software}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_processor()}, {cores} cores, {torch.get_num_threads()} threads, {software}"


def today() -> str:
    """The date of a measurement, in UTC, as 2026-01-31."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
