"""Which backend computes a problem, and by which path; the choice can be asked for and is logged once."""

import dataclasses
import functools
import logging
from dataclasses import dataclass

import numpy as np
import torch

from padless.attention import cost
from padless.attention.backends import BACKENDS
from padless.attention.capability import Backend
from padless.attention.problem import Problem
from padless.errors import PadlessError

log = logging.getLogger("padless.attention")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was chosen for a batch, and why.

    Attributes:
        backend: Its name.
        path: "fixed" when all segments have one length, so that a kernel without varlen bookkeeping takes them as a
            plain batch; else "varlen".
        microseconds: Predicted forward and backward of each backend that can, cheapest first.
        padded_microseconds: Predicted cost of padding the same segments to the longest.
        refusals: For each other backend, what it lacks.
    """

    backend: str
    path: str
    microseconds: dict[str, float]
    padded_microseconds: float
    refusals: dict[str, list[str]]

    def __str__(self) -> str:
        able = ", ".join(f"{name} {us:,.0f} us" for name, us in self.microseconds.items())
        padded = f"the padded batch would take {self.padded_microseconds:,.0f} us"
        refused = "; ".join(f"{name}: {', '.join(reasons)}" for name, reasons in self.refusals.items())
        return f"{self.backend}, {self.path} path. Predicted: {able}; {padded}. Cannot: {refused or 'none'}"


def run(p: Problem, name: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output and log-sum-exp from the backend named, or from the fastest that can."""
    backend = BACKENDS[choose(p, name).backend]
    if not ((p.segments.q_lengths > 0) & (p.segments.k_lengths > 0)).any():
        backend = BACKENDS["segmented"]  # nobody sees anybody, and kernels are not made for that
    if backend.padding or p.segments.contiguous:
        return backend.run(p)
    return _without_padding(backend, p)


def choose(p: Problem, name: str = "auto") -> Choice:
    """The backend for a problem.

    Raises:
        PadlessError: When the one that was named, or every one, lacks something: each with its reasons.
    """
    if name != "auto" and name not in BACKENDS:
        raise PadlessError(f"no backend {name!r}: there are auto, {', '.join(BACKENDS)}")
    asked = list(BACKENDS) if name == "auto" else [name]
    key = ("choice", name, _facts(p))
    if key not in p.segments.cache:
        p.segments.cache[key] = _choose(p, asked)
    return p.segments.cache[key]


def _facts(p: Problem) -> tuple[object, ...]:
    """All a choice depends on besides the segments."""
    sizes = (p.q.shape[1:], p.k.shape[1], p.v.shape[2], p.q.dtype, p.q.device)
    options = (p.left, p.right, p.softcap > 0, p.sinks is None, p.dropout_p > 0, p.deterministic, p.return_lse)
    return (*sizes, *options, p.needs_grad)


def _choose(p: Problem, asked: list[str]) -> Choice:
    refusals: dict[str, list[str]] = {}
    able: dict[str, float] = {}
    for name in asked:
        reasons = why_not(BACKENDS[name], p)
        if reasons:
            refusals[name] = reasons
        else:
            able[name] = predict(p, name)
    if not able:
        lines = "".join(f"\n  {name}: {', '.join(reasons)}" for name, reasons in refusals.items())
        raise PadlessError(f"no attention backend can do this:{lines}")
    able = dict(sorted(able.items(), key=lambda item: item[1]))
    name = next(iter(able))
    choice = Choice(
        backend=name,
        path="fixed" if p.segments.equal else "varlen",
        microseconds=able,
        padded_microseconds=_padded(p, name),
        refusals=refusals,
    )
    _log_once(name, choice.path, str(choice))
    return choice


@functools.lru_cache(maxsize=64)
def _log_once(backend: str, path: str, text: str) -> None:
    log.info("attention by %s (%s): %s", backend, path, text)


def why_not(backend: Backend, p: Problem) -> list[str]:
    """Every reason why a backend cannot compute `p` here."""
    missing = backend.missing()
    return ([missing] if missing else []) + backend.capability.refusals(p)


def predict(p: Problem, name: str) -> float:
    """Microseconds of forward and backward, by the machine's cost model."""
    s = p.segments
    costs = cost.machine(p.q.device.type)[name]
    nq, nk = s.q_lengths, s.k_lengths
    whole = name == "dense"
    pairs = s.q_slots * s.k_slots if whole else int((nq * nk).sum())
    per_segment = name in ("segmented", "reference") and not s.equal
    calls = int((nq > 0).sum()) if per_segment else 1
    return costs.estimate(_heads(p), calls, s.q_slots if whole else int(nq.sum()), pairs)


def _padded(p: Problem, name: str) -> float:
    n, s = len(p.segments), p.segments
    return cost.machine(p.q.device.type)[name].gathered(_heads(p), n, s.max_q, s.max_k)


def _heads(p: Problem) -> float:
    return p.q.shape[1] * p.q.shape[2] / 64


def _without_padding(backend: Backend, p: Problem) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Run on copies without padding and put the results back: padding is zero and gets zero gradients."""
    at_q, at_k = p.segments.indices("q", p.q.device), p.segments.indices("k", p.q.device)
    packed = dataclasses.replace(
        p,
        q=p.q.index_select(0, at_q),
        k=p.k.index_select(0, at_k),
        v=p.v.index_select(0, at_k),
        segments=p.segments.compact(),
    )
    out, lse = backend.run(packed)
    slots = p.q.shape[0]
    spread = out.new_zeros(slots, *out.shape[1:]).index_copy(0, at_q, out)
    if lse is not None:
        lse = lse.new_full((slots, *lse.shape[1:]), -np.inf).index_copy(0, at_q, lse)
    return spread, lse
