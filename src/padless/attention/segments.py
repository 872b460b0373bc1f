"""Where the segments are: offsets on the host, made once per batch and shared by every layer."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from padless.errors import PadlessError


@dataclass(frozen=True, kw_only=True, eq=False)
class Segments:
    """The geometry of one attention call: segment `i` of the queries sees segment `i` of the keys, and no other.

    Everything here lives on the host, so no layer has to wait for a device to learn a length. What a kernel needs on
    its device (`cu_seqlens`, gather indices) is made on first use and kept, so all layers of a step share it.
    The arrays are copied and frozen: a boundary cannot be changed behind a kernel's back.

    Attributes:
        q_starts: First slot of each query segment; int64 `[S]`, ascending.
        q_lengths: Real tokens of each query segment; int64 `[S]`, 0 allowed.
        k_starts: The same for keys and values.
        k_lengths: The same for keys and values.
        q_slots: Rows of the query tensor; slots outside every segment are padding.
        k_slots: Rows of the key and value tensors.
    """

    q_starts: np.ndarray
    q_lengths: np.ndarray
    k_starts: np.ndarray
    k_lengths: np.ndarray
    q_slots: int
    k_slots: int
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if len(self.q_starts) != len(self.k_starts):
            raise PadlessError(
                f"{len(self.q_starts)} query segments but {len(self.k_starts)} key segments: segment i of the queries "
                "attends to segment i of the keys, so both need the same number (an absent side has length 0)"
            )
        for name in ("q_starts", "q_lengths", "k_starts", "k_lengths"):
            array = np.array(getattr(self, name), dtype=np.int64)
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        _check_side("query", self.q_starts, self.q_lengths, self.q_slots)
        _check_side("key", self.k_starts, self.k_lengths, self.k_slots)

    @classmethod
    def of(
        cls,
        cu_seqlens: Any,
        cu_seqlens_k: Any = None,
        *,
        padded: Any = None,
        padded_k: Any = None,
        slots: int | None = None,
        slots_k: int | None = None,
    ) -> "Segments":
        """Segments from prefix sums of lengths.

        Args:
            cu_seqlens: Prefix sums of the real query lengths; int `[S + 1]`, first element 0. A tensor on a device is
                read back here, once; that is the only synchronisation.
            cu_seqlens_k: The same for keys, when they differ (decoding, cross attention).
            padded: Where each query segment starts in its tensor, as prefix sums of the padded lengths; int
                `[S + 1]`. Only with padding between segments.
            padded_k: The same for keys.
            slots: Rows of the query tensor, when there is padding after the last segment.
            slots_k: The same for keys.

        Raises:
            PadlessError: When the offsets are not offsets: not integers, not starting at 0, falling, or not fitting.

        Example:
            >>> Segments.of([0, 3, 3, 8]).q_lengths
            array([3, 0, 5])
            >>> Segments.of([0, 3, 2])
            Traceback (most recent call last):
                ...
            padless.errors.PadlessError: cu_seqlens falls from 3 to 2 at index 2: it must be a prefix sum of lengths...
        """
        q = _side("cu_seqlens", cu_seqlens, padded, slots)
        if cu_seqlens_k is None:
            return cls(q_starts=q[0], q_lengths=q[1], k_starts=q[0], k_lengths=q[1], q_slots=q[2], k_slots=q[2])
        k = _side("cu_seqlens_k", cu_seqlens_k, padded_k, slots_k)
        return cls(q_starts=q[0], q_lengths=q[1], k_starts=k[0], k_lengths=k[1], q_slots=q[2], k_slots=k[2])

    def __len__(self) -> int:
        return len(self.q_starts)

    @functools.cached_property
    def max_q(self) -> int:
        """Longest query segment."""
        return int(self.q_lengths.max(initial=0))

    @functools.cached_property
    def max_k(self) -> int:
        """Longest key segment."""
        return int(self.k_lengths.max(initial=0))

    @functools.cached_property
    def square(self) -> bool:
        """Whether every segment has as many keys as queries."""
        return bool(np.array_equal(self.q_lengths, self.k_lengths))

    @functools.cached_property
    def contiguous(self) -> bool:
        """Whether both sides are free of padding, so that plain `cu_seqlens` describe them."""
        return int(self.q_lengths.sum()) == self.q_slots and int(self.k_lengths.sum()) == self.k_slots

    @functools.cached_property
    def equal(self) -> bool:
        """Whether all segments have the same lengths, so that a fixed-length kernel can take them."""
        return (
            len(self) > 0
            and self.contiguous
            and self.max_q > 0
            and self.max_k > 0
            and bool((self.q_lengths == self.max_q).all() and (self.k_lengths == self.max_k).all())
        )

    def compact(self) -> "Segments":
        """The same segments with all padding taken out."""
        if self.contiguous:
            return self
        if "compact" not in self.cache:
            self.cache["compact"] = Segments(
                q_starts=_starts(self.q_lengths),
                q_lengths=self.q_lengths,
                k_starts=_starts(self.k_lengths),
                k_lengths=self.k_lengths,
                q_slots=int(self.q_lengths.sum()),
                k_slots=int(self.k_lengths.sum()),
            )
        return self.cache["compact"]

    def real(self, side: str) -> np.ndarray:
        """Slots that hold real tokens, in order; int64 `[tokens]`. `side` is "q" or "k"."""
        starts, lengths = (self.q_starts, self.q_lengths) if side == "q" else (self.k_starts, self.k_lengths)
        return np.repeat(starts - _starts(lengths), lengths) + np.arange(lengths.sum())

    def cu_seqlens(self, side: str, device: Any) -> Any:
        """Prefix sums of one side ("q" or "k") as an int32 tensor on `device`; made once."""
        import torch

        def make() -> torch.Tensor:
            lengths = self.q_lengths if side == "q" else self.k_lengths
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            return torch.from_numpy(offsets).to(device, non_blocking=True)

        return self.kept(("cu_seqlens", side, torch.device(device)), make)

    def indices(self, side: str, device: Any) -> Any:
        """`real(side)` as an int64 tensor on `device`; made once."""
        import torch

        key = ("real", side, torch.device(device))
        return self.kept(key, lambda: torch.from_numpy(self.real(side)).to(device, non_blocking=True))

    def padding(self, device: Any) -> Any:
        """Query slots that hold no real token, as an int64 tensor on `device`; made once."""
        import torch

        def make() -> torch.Tensor:
            slots = np.setdiff1d(np.arange(self.q_slots), self.real("q"), assume_unique=True)
            return torch.from_numpy(slots).to(device)

        return self.kept(("padding", torch.device(device)), make)

    def kept(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gave when it was first asked for `key`; a training step may use what inference made."""
        import torch

        if key not in self.cache:
            with torch.inference_mode(False):
                self.cache[key] = make()
        return self.cache[key]


def _starts(lengths: np.ndarray) -> np.ndarray:
    """Exclusive prefix sum."""
    return np.concatenate([[0], np.cumsum(lengths)[:-1]]) if len(lengths) else np.zeros(0, np.int64)


def to_host(offsets: Any) -> np.ndarray:
    """An array of the caller's offsets, wherever they live."""
    return np.asarray(offsets.detach().cpu() if hasattr(offsets, "detach") else offsets)


def _offsets(name: str, given: Any) -> np.ndarray:
    """A checked prefix sum as int64 `[S + 1]`."""
    offsets = to_host(given)
    if offsets.ndim != 1 or len(offsets) < 1 or not np.issubdtype(offsets.dtype, np.integer):
        raise PadlessError(
            f"{name} has dtype {offsets.dtype} and shape {offsets.shape}: it must hold integers in one dimension, "
            "the prefix sum of the segment lengths with a leading 0"
        )
    if offsets[0] != 0:
        raise PadlessError(f"{name} starts with {offsets[0]}: a prefix sum of lengths starts with 0")
    offsets = offsets.astype(np.int64)  # differences of unsigned integers never fall
    falls = np.flatnonzero(np.diff(offsets) < 0)
    if len(falls):
        i = int(falls[0])
        raise PadlessError(
            f"{name} falls from {offsets[i]} to {offsets[i + 1]} at index {i + 1}: it must be a prefix sum of "
            "lengths; shuffled or damaged offsets would mix samples"
        )
    return offsets


def _side(name: str, given: Any, padded: Any, slots: int | None) -> tuple[np.ndarray, np.ndarray, int]:
    """Starts, lengths and slots of one side."""
    lengths = np.diff(_offsets(name, given))
    if padded is None:
        return _starts(lengths), lengths, int(lengths.sum()) if slots is None else slots
    physical = _offsets(f"{name} (padded)", padded)
    if len(physical) != len(lengths) + 1:
        raise PadlessError(f"{name} names {len(lengths)} segments but its padded offsets name {len(physical) - 1}")
    return physical[:-1], lengths, int(physical[-1]) if slots is None else slots


def _check_side(name: str, starts: np.ndarray, lengths: np.ndarray, slots: int) -> None:
    """Segments lie in order inside the tensor and do not overlap."""
    if len(starts) != len(lengths):
        raise PadlessError(f"{len(starts)} {name} starts but {len(lengths)} lengths")
    if (lengths < 0).any():
        i = int(np.flatnonzero(lengths < 0)[0])
        raise PadlessError(f"{name} segment {i} has length {lengths[i]}: give 0 for a segment without tokens")
    ends = starts + lengths
    overlap = np.flatnonzero(ends[:-1] > starts[1:])
    if len(overlap):
        i = int(overlap[0])
        raise PadlessError(
            f"{name} segment {i} ends at slot {ends[i]} but segment {i + 1} starts at {starts[i + 1]}: tokens of one "
            "sample would be read as another's"
        )
    if len(starts) and (starts[0] < 0 or ends[-1] > slots):
        raise PadlessError(f"{name} segments span slots {starts[0]} to {ends[-1]}, outside the {slots} slots there are")
