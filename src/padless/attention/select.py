"""Which backend computes a problem."""

import torch

from padless.attention import dense, reference, segmented
from padless.attention.problem import Problem
from padless.errors import PadlessError

BACKENDS = {"segmented": segmented.run, "dense": dense.run, "reference": reference.run}


def run(p: Problem, backend: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output and log-sum-exp from the backend named, or from the fastest that can."""
    name = "segmented" if backend == "auto" else backend
    if name not in BACKENDS:
        raise PadlessError(f"no backend {name!r}: there are auto, {', '.join(BACKENDS)}")
    return BACKENDS[name](p)
