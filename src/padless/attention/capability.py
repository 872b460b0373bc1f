"""What a backend can do, and why it cannot do what is asked."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from padless.attention.problem import DTYPES, Problem

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True)
class Capability:
    """Everything a backend declares; `refusals` compares it with a problem.

    Attributes:
        devices: Device types, or None for any.
        dtypes: Of q, k and v.
        max_head_size: Largest head size.
        head_multiple: Head sizes must be multiples of this.
        own_value_size: Whether values may have another head size than keys.
        window: Whether distances can be limited beyond the causal mask.
        two_sided: Whether a window may reach ahead.
        softcap: Whether scores can be capped.
        sinks: Whether attention sinks are computed.
        dropout: Whether attention weights can be dropped.
        backward: Device types on which gradients are computed, or None for any.
        deterministic: Whether gradients can be the same bits in every run.
        lse: Whether the log-sum-exp can be handed out.
        more_queries: Whether a segment may have more queries than keys under a causal mask.
    """

    devices: tuple[str, ...] | None = None
    dtypes: tuple[torch.dtype, ...] = DTYPES
    max_head_size: int | None = None
    head_multiple: int = 1
    own_value_size: bool = True
    window: bool = True
    two_sided: bool = True
    softcap: bool = False
    sinks: bool = False
    dropout: bool = False
    backward: tuple[str, ...] | None = None
    deterministic: bool = True
    lse: bool = True
    more_queries: bool = True

    def refusals(self, p: Problem) -> list[str]:
        """Every requirement of `p` that is not met, in words."""
        return [*self._shape_refusals(p), *self._option_refusals(p)]

    def _shape_refusals(self, p: Problem) -> Iterator[str]:
        device, size, value_size = p.q.device.type, p.q.shape[2], p.v.shape[2]
        if self.devices is not None and device not in self.devices:
            yield f"runs on {_either(self.devices)}, not {device}"
        if p.q.dtype not in self.dtypes:
            yield f"takes {_either(str(d).removeprefix('torch.') for d in self.dtypes)}, not {_name(p.q.dtype)}"
        if self.max_head_size is not None and max(size, value_size) > self.max_head_size:
            yield f"head size {max(size, value_size)} is above {self.max_head_size}"
        if size % self.head_multiple or value_size % self.head_multiple:
            yield f"head sizes {size} and {value_size} are not both multiples of {self.head_multiple}"
        if not self.own_value_size and size != value_size:
            yield f"values of size {value_size} beside keys of size {size}"
        if p.right is not None and not self.more_queries and (p.segments.q_lengths > p.segments.k_lengths).any():
            yield "a causal segment with more queries than keys"

    def _option_refusals(self, p: Problem) -> Iterator[str]:
        if p.windowed and not self.window:
            yield "a window"
        elif p.windowed and not self.two_sided and p.right != 0:
            yield "a window without a causal mask"
        for name, asked in (
            ("softcap", bool(p.softcap)),
            ("sinks", p.sinks is not None),
            ("dropout", p.dropout_p > 0),
            ("lse", p.return_lse),
        ):
            if asked and not getattr(self, name):
                yield {"lse": "return_lse"}.get(name, name)
        if p.needs_grad:
            if self.backward is not None and p.q.device.type not in self.backward:
                yield f"gradients on {p.q.device.type}"
            if p.deterministic and not self.deterministic:
                yield "deterministic gradients"


@dataclass(frozen=True, kw_only=True)
class Backend:
    """One way to compute attention.

    Attributes:
        name: As users write it.
        summary: One line for `padless backends`.
        capability: What it can do.
        missing: Why it cannot be used on this machine, or None when it can.
        run: Output `[Tq, Hq, Dv]` and log-sum-exp `[Tq, Hq]` or None of a problem without padding, or with padding if
            `padding`.
        padding: Whether `run` itself keeps out of padding; others get packed copies.
    """

    name: str
    summary: str
    capability: Capability
    missing: Callable[[], str | None]
    run: Callable[[Problem], tuple[torch.Tensor, torch.Tensor | None]]
    padding: bool = False


def always() -> str | None:
    """Nothing is missing."""
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _either(names: Any) -> str:
    return " or ".join(names)
