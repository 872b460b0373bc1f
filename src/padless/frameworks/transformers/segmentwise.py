"""Layers that mix tokens in a way of their own, run segment by segment.

State-space, linear-attention and convolution layers carry a state along the row; a few old models have attention that
no attention function can reach. Their forward is right on one segment at a time, so that is how it is called: segments
of one length go through it together as a batch, and the results are put back in the row's order.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from padless.errors import PadlessError
from padless.frameworks.transformers.boundaries import KEYS, Boundaries, Call, current_call
from padless.frameworks.transformers.masks import MaskRequest

WAYS = ("segmentwise", "fused")
TOWERS = ("image_", "video_", "audio_")  # what a call computed beforehand for its towers comes past every layer


def isolate(layer: torch.nn.Module, way: str = "segmentwise") -> None:
    """Make a layer respect the boundaries of its prepared model's calls, in place.

    Args:
        layer: A module whose forward takes hidden states `[rows, length, size]` first.
        way: `"segmentwise"` runs it segment by segment; `"fused"` gives it the whole row with `seq_idx` and
            `cu_seq_lens_q`, for layers whose GPU kernels know them. Layers that take no such arguments are run segment
            by segment in either way.

    Raises:
        PadlessError: For any other way.
    """
    if way not in WAYS:
        raise PadlessError(f"stateful={way!r} is unknown; there are {', '.join(WAYS)}")
    kind = type(layer)
    listens = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(kind.forward).parameters.values())
    base = Fused if way == "fused" and listens else Segmentwise
    if not issubclass(kind, _Isolated):
        layer.__class__ = type(f"{base.__name__}{kind.__name__}", (base, kind), {"__module__": __name__})


class _Isolated:
    """Mixed into a layer's class in front of it."""


class Segmentwise(_Isolated):
    """Runs the layer's own forward once per distinct segment length."""

    @torch.compiler.disable
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's own forward, isolated in packed calls and untouched in others."""
        boundaries = _call_of(self).boundaries
        forward = super().forward  # type: ignore[misc]
        if boundaries is None:
            return forward(*args, **kwargs)
        return run_segmentwise(forward, boundaries, args, kwargs, name=type(self).__name__)


class Fused(_Isolated):
    """Tells the layer's own forward the boundaries, in the two ways that fused kernels know."""

    @torch.compiler.disable
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's own forward, isolated in packed calls and untouched in others."""
        boundaries = _call_of(self).boundaries
        forward = super().forward  # type: ignore[misc]
        if boundaries is None:
            return forward(*args, **kwargs)
        own = _without_towers(kwargs)
        return forward(*args, **own, seq_idx=boundaries.seq_idx[None], cu_seq_lens_q=boundaries.cu_seqlens)


def _call_of(layer: Any) -> Call:
    call = current_call()
    if call is None:
        raise PadlessError(
            f"{type(layer).__name__} was called outside of its prepared model's forward: its boundaries are unknown, "
            "and guessing could let segments see each other; call the prepared model itself"
        )
    return call


def run_segmentwise(
    forward: Callable, boundaries: Boundaries, args: tuple, kwargs: dict[str, Any], *, name: str = "the layer"
) -> Any:
    """Call `forward` on each segment alone and put the results back in the row's order.

    Args:
        forward: Takes hidden states `[n, length, size]` first; returns such a tensor, or a tuple that starts with one.
        boundaries: The segments of the flattened rows.
        args: Positional arguments of the packed call.
        kwargs: Keyword arguments of the packed call.
        name: For errors.

    Returns:
        What `forward` returns; of a tuple, only the first element is kept, the rest become None.

    Raises:
        PadlessError: When an argument cannot be divided among segments: a filled cache, a tensor of unknown meaning.
    """
    own = {key: value for key, value in _without_towers(kwargs).items() if key not in KEYS}
    bound = inspect.signature(forward).bind(*args, **own)
    hidden = next(iter(bound.arguments.values()))
    split = _Split(boundaries, hidden, name)
    extra = next((p.name for p in bound.signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
    parts: dict[str, list[Any]] = {}
    for key, value in bound.arguments.items():
        for inner, each in value.items() if key == extra else [(key, value)]:
            parts[inner] = split.divide(inner, each)
    positional = [p.name for p in bound.signature.parameters.values() if p.kind is p.POSITIONAL_ONLY]
    results = []
    for group in range(len(split.sizes)):
        call = {key: values[group] for key, values in parts.items()}
        results.append(forward(*[call.pop(key) for key in positional if key in call], **call))
    if isinstance(results[0], tuple):
        return (split.merge([result[0] for result in results]), *[None] * (len(results[0]) - 1))
    return split.merge(results)


def _without_towers(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if not key.startswith(TOWERS)}


class _Split:
    """Divides the arguments of one call into groups of segments of equal length."""

    def __init__(self, boundaries: Boundaries, hidden: torch.Tensor, name: str):
        self.rows, self.length = hidden.shape[:2]
        self.name = name
        starts: dict[int, list[int]] = defaultdict(list)
        for start, length in zip(boundaries.offsets, boundaries.lengths, strict=False):
            if length:
                starts[length].append(start)
        self.starts = sorted(starts.items())
        self.sizes = [(len(group), length) for length, group in self.starts]
        order = torch.cat([(torch.tensor(g)[:, None] + torch.arange(n)).reshape(-1) for n, g in self.starts])
        self.order = order.to(hidden.device)
        self.inverse = torch.argsort(order).to(hidden.device)

    def divide(self, key: str, value: Any) -> list[Any]:
        """One value per group."""
        if value is None or isinstance(value, bool | int | float | str) or getattr(value, "ndim", 1) == 0:
            return [value] * len(self.sizes)
        if isinstance(value, tuple | list):
            columns = [self.divide(key, each) for each in value]
            return [type(value)(column[group] for column in columns) for group in range(len(self.sizes))]
        if isinstance(value, torch.Tensor):
            return self._divide_tensor(key, value)
        if isinstance(value, MaskRequest):
            return [None] * len(self.sizes)  # handed along by the model; no layer but padless's attention can read one
        raise PadlessError(
            f"{self.name} was given {key}={type(value).__name__} in a packed call, which cannot be divided among "
            "segments; a cache holds the state of one sequence only: call with use_cache=False"
        )

    def _divide_tensor(self, key: str, value: torch.Tensor) -> list[Any]:
        if key in _DIVISIONS:
            return [_DIVISIONS[key](value, self.rows, *size) for size in self.sizes]
        if value.ndim == 4 and value.shape[-2:] == (self.length, self.length):
            return [self._blocks(value, n, group) for n, group in self.starts]
        if value.ndim >= 2 and value.shape[1] == self.length and value.shape[0] in (1, self.rows):
            flat = value.expand(self.rows, *value.shape[1:]).flatten(0, 1)
            # One gather and one split: a slice per segment would cost a full-size gradient each.
            pieces = flat.index_select(0, self.order).split([n * length for n, length in self.sizes])
            return [piece.unflatten(0, size) for piece, size in zip(pieces, self.sizes, strict=True)]
        raise PadlessError(
            f"{self.name} was given {key} of shape {tuple(value.shape)}, which is neither per token nor a mask of the "
            f"{self.rows} x {self.length} tokens: how it divides among segments is unknown"
        )

    def _blocks(self, mask: torch.Tensor, length: int, starts: list[int]) -> torch.Tensor:
        """The blocks on a mask's diagonal, `[n, heads or 1, length, length]`."""
        blocks = []
        for start in starts:
            row, at = divmod(start, self.length)
            blocks.append(mask[row if mask.shape[0] > 1 else 0, :, at : at + length, at : at + length])
        return torch.stack(blocks)

    def merge(self, pieces: list[torch.Tensor]) -> torch.Tensor:
        """Back to `[rows, length, size]`."""
        flat = torch.cat([piece.flatten(0, 1) for piece in pieces])
        return flat.index_select(0, self.inverse).unflatten(0, (self.rows, self.length))


def _restart_alibi(alibi: torch.Tensor, rows: int, count: int, length: int) -> torch.Tensor:
    """Linear biases `[rows * heads, 1, keys]` counted from 0 in each segment, exactly as for the sample alone."""
    heads = alibi.shape[0] // rows
    return alibi[:heads, :, :length].repeat(count, 1, 1)


def _keep(value: torch.Tensor, *_: Any) -> torch.Tensor:
    return value


# Arguments that are neither per token nor a mask, by the names models give them.
_DIVISIONS: dict[str, Callable[..., torch.Tensor]] = {"alibi": _restart_alibi, "position_bias": _keep}
