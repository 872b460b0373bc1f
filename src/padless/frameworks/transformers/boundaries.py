"""Where segments begin and end, as a Transformers forward call says it, and who may read it.

Boundaries come from `cu_seq_lens_q` / `cu_seq_lens_k` and from nothing else. They are read to the host once per
forward call and checked there, so that no layer has to wait for the device.
"""

import contextvars
import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from padless.attention import Segments
from padless.errors import PadlessError

KEYS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Boundaries:
    """The segments of one forward call, its rows flattened to `[T]`. Made once, shared by all layers.

    Attributes:
        offsets: Segment i holds the tokens `offsets[i] : offsets[i + 1]`; first 0, last T, on the host.
        device: Where the model computes.
    """

    offsets: tuple[int, ...]
    device: torch.device

    @property
    def total(self) -> int:
        """Tokens of all rows together."""
        return self.offsets[-1]

    @functools.cached_property
    def lengths(self) -> list[int]:
        """Tokens of each segment, empty ones included."""
        return [end - start for start, end in itertools.pairwise(self.offsets)]

    @functools.cached_property
    def seq_idx(self) -> torch.Tensor:
        """Number of each token's segment, from 0; int32 `[T]`."""
        lengths = torch.tensor(self.lengths)
        return torch.repeat_interleave(torch.arange(len(lengths), dtype=torch.int32), lengths).to(self.device)

    @functools.cached_property
    def positions(self) -> torch.Tensor:
        """Position of each token in its segment; int64 `[T]`."""
        starts = torch.tensor(self.offsets[:-1], device=self.device)
        return torch.arange(self.total, device=self.device) - starts[self.seq_idx.long()]

    @functools.cached_property
    def cu_seqlens(self) -> torch.Tensor:
        """The offsets as int32 on the device."""
        return torch.tensor(self.offsets, dtype=torch.int32).to(self.device)

    @functools.cache  # noqa: B019 - lives as long as the forward call it belongs to
    def segments(self, chunk: int | None = None) -> Segments:
        """What `varlen_attention` shares between layers; with `chunk`, segments are cut every so many tokens."""
        if chunk is None:
            return Segments.of(self.offsets)
        cuts = [at for start, end in itertools.pairwise(self.offsets) for at in range(start, end, chunk)]
        return Segments.of([*cuts, self.total])


def read_boundaries(kwargs: Mapping[str, Any], *, rows: int, length: int, device: torch.device) -> Boundaries | None:
    """Read and check the boundaries in a forward call's keyword arguments; None when there are none.

    Args:
        kwargs: The call's keyword arguments.
        rows: Rows of the batch.
        length: Tokens per row.
        device: Where the model computes.

    Raises:
        PadlessError: When boundaries are incomplete, contradict each other, or do not fit the batch.
    """
    given = {key: kwargs[key] for key in KEYS if kwargs.get(key) is not None}
    if not given:
        return None
    if "cu_seq_lens_q" not in given:
        raise PadlessError(
            f"{', '.join(given)} given without cu_seq_lens_q: boundaries are read from cu_seq_lens_q alone, and "
            "guessing them could let segments see each other; give cu_seq_lens_q (int32, [segments + 1])"
        )
    offsets = _offsets("cu_seq_lens_q", given["cu_seq_lens_q"])
    if "cu_seq_lens_k" in given and given["cu_seq_lens_k"] is not given["cu_seq_lens_q"]:
        keys = _offsets("cu_seq_lens_k", given["cu_seq_lens_k"])
        if keys != offsets:
            raise PadlessError(
                f"cu_seq_lens_q {_short(offsets)} and cu_seq_lens_k {_short(keys)} differ: in self-attention queries "
                "and keys are the same tokens; give the same offsets for both"
            )
    _check_offsets(offsets, rows=rows, length=length)
    boundaries = Boundaries(offsets=offsets, device=device)
    longest = max(boundaries.lengths)
    for key in ("max_length_q", "max_length_k"):
        if key in given and int(given[key]) < longest:
            raise PadlessError(
                f"{key} is {int(given[key])} but the longest segment has {longest} tokens: a kernel "
                f"would leave its tail uncomputed; give {key}={longest}"
            )
    if "seq_idx" in given:
        _check_seq_idx(given["seq_idx"], boundaries, length)
    return boundaries


def _offsets(name: str, value: Any) -> tuple[int, ...]:
    tensor = torch.as_tensor(value)
    if tensor.ndim == 2 and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.ndim != 1 or tensor.is_floating_point() or tensor.dtype == torch.bool or tensor.numel() < 2:
        raise PadlessError(
            f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}: expected int32 offsets [segments + 1], "
            "from 0 to the number of tokens"
        )
    return tuple(tensor.tolist())


def _check_offsets(offsets: tuple[int, ...], *, rows: int, length: int) -> None:
    if any(end < start for start, end in itertools.pairwise(offsets)):
        raise PadlessError(
            f"cu_seq_lens_q {_short(offsets)} goes down: offsets must not be shuffled; sort nothing, re-collate"
        )
    if offsets[0] != 0 or offsets[-1] != rows * length:
        raise PadlessError(
            f"cu_seq_lens_q runs from {offsets[0]} to {offsets[-1]} but the batch holds {rows} x {length} = "
            f"{rows * length} tokens: tokens outside would belong to nobody; offsets run from 0 to {rows * length}, "
            "and a padded tail is a segment of its own"
        )
    missing = {row * length for row in range(rows)} - set(offsets)
    if missing:
        raise PadlessError(
            f"no segment starts at token {min(missing)}, where row {min(missing) // length} begins: a segment would "
            "run over the end of its row into the next; every row starts a segment"
        )


def _check_seq_idx(seq_idx: torch.Tensor, boundaries: Boundaries, length: int) -> None:
    """`seq_idx` says the same thing twice; it must change where a segment starts and nowhere else."""
    flat = torch.as_tensor(seq_idx).reshape(-1)
    if flat.numel() != boundaries.total:
        raise PadlessError(f"seq_idx has {flat.numel()} entries for {boundaries.total} tokens: give one per token")
    said = flat.diff() != 0
    said[length - 1 :: length] = True  # rows end segments, whether seq_idx starts again in each row or counts on
    wrong = said != (boundaries.seq_idx.diff() != 0).to(said.device)
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0]) + 1
        raise PadlessError(
            f"seq_idx and cu_seq_lens_q disagree about a boundary at token {at}: state-space layers and attention "
            "would see different segments; make both from the same lengths"
        )


def _short(offsets: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, offsets[:8]))
    return f"[{shown}{', ...' if len(offsets) > 8 else ''}]"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """One forward call of a prepared model.

    Attributes:
        boundaries: Of a packed call; None for an ordinary one.
        owner: The module whose forward it is.
        outer: The call it was made from, if any.
    """

    boundaries: Boundaries | None
    owner: torch.nn.Module | None = None
    outer: "Call | None" = None


_current: contextvars.ContextVar[Call | None] = contextvars.ContextVar("padless_forward_call", default=None)


def current_call() -> Call | None:
    """The forward call under way in this thread; None outside any prepared model."""
    return _current.get()


def enter(call: Call | None) -> None:
    """Make `call` the current one."""
    _current.set(call)


def replay(call: Call | None, function: Callable, *args: Any) -> Any:
    """Run `function` as part of `call`: what gradient checkpointing recomputes happens after the call has ended."""
    token = _current.set(call)
    try:
        return function(*args)
    finally:
        _current.reset(token)
