"""Watching a forward pass from outside: what goes into and comes out of every module, slot by slot."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

Key = tuple[str, str, int]  # module name, "in" or "out", how often it was called before


@dataclass
class Trace:
    """Tensors seen in one pass, in the order of events; each is `[slots, features]`."""

    events: dict[Key, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Move:
    """The first place where two passes differ, in slots where they should not.

    Attributes:
        module: Name of the module in which it happens: where the first differing tensor came out, or the one whose own
            code made the first differing input of a child.
        child: The child that received it, in the second case; else "".
        slots: Indices of the slots that differ there.
    """

    module: str
    child: str
    slots: tuple[int, ...]


@contextlib.contextmanager
def recording(model: torch.nn.Module, *, rows: int, length: int) -> Iterator[Trace]:
    """Record the first tensor argument and the first tensor result of every module.

    Tensors without an axis of slots are skipped. Copies are kept, since models work in place.
    """
    trace = Trace()
    calls: dict[str, int] = {}
    handles = []

    def keep(name: str, side: str, call: int, value: Any) -> None:
        tensor = _first_tensor(value)
        if tensor is not None and tensor.is_floating_point():
            by_slot = as_slots(tensor.detach(), rows, length)
            if by_slot is not None:
                trace.events[name, side, call] = by_slot.clone()

    def before(name: str):
        def hook(_module, args, kwargs):
            calls[name] = calls.get(name, -1) + 1
            keep(name, "in", calls[name], (args, kwargs.get("hidden_states"), kwargs.get("x")))

        return hook

    def after(name: str):
        return lambda _module, _args, output: keep(name, "out", calls.get(name, 0), output)

    for name, module in model.named_modules():
        if name:  # the root's input is the batch and its output the logits, both looked at elsewhere
            handles.append(module.register_forward_pre_hook(before(name), with_kwargs=True))
            handles.append(module.register_forward_hook(after(name)))
    try:
        yield trace
    finally:
        for handle in handles:
            handle.remove()


def as_slots(tensor: torch.Tensor, rows: int, length: int) -> torch.Tensor | None:
    """View a tensor as `[rows * length, features]`, whatever its axis of slots; None without one."""
    shape = tuple(tensor.shape)
    if len(shape) >= 2 and shape[:2] == (rows, length):
        return tensor.reshape(rows * length, -1)
    if shape and shape[0] == rows * length:
        return tensor.reshape(rows * length, -1)
    if len(shape) >= 3 and shape[0] == rows:
        for axis in range(2, len(shape)):
            if shape[axis] == length:
                return tensor.movedim(axis, 1).reshape(rows * length, -1)
        # Causal convolutions of [B, C, L] pad on both sides; their first L results are the slots'.
        if len(shape) == 3 and length < shape[2] <= length + 16:
            return tensor[:, :, :length].movedim(2, 1).reshape(rows * length, -1)
    return None


def first_move(base: Trace, other: Trace, among: torch.Tensor, unstable: frozenset[Key] = frozenset()) -> Move | None:
    """The first event whose slots `among` (`[slots]` bool) differ, or None."""
    for key, before in base.events.items():
        after = other.events.get(key)
        if after is None or key in unstable or after.shape != before.shape:
            continue
        moved = (before != after).any(dim=1) & among.to(before.device)
        if bool(moved.any()):
            name, side, _ = key
            slots = tuple(int(i) for i in torch.nonzero(moved).flatten().tolist())
            if side == "out":
                return Move(module=name, child="", slots=slots)
            return Move(module=name.rpartition(".")[0], child=name, slots=slots)
    return None


def unstable_events(base: Trace, again: Trace) -> frozenset[Key]:
    """Events that differ between two identical calls."""
    return frozenset(
        key for key, value in base.events.items() if key in again.events and not torch.equal(value, again.events[key])
    )


def _first_tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, tuple | list):
        return next((t for t in map(_first_tensor, value) if t is not None), None)
    return None
