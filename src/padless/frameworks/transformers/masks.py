"""The mask function: what Transformers wants masked, kept as a request instead of a matrix.

Transformers asks a mask function for a `[batch, 1, queries, keys]` tensor before the first layer. Packed attention
needs the *rule* (causal, window, chunk) and never the matrix; an ordinary call (generation, padded batches) needs the
matrix. `MaskRequest` keeps the question: it reads the rule from it, or builds the very tensor that `sdpa` or `eager`
would get.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from transformers import masking_utils

from padless.errors import PadlessError


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentRule:
    """Who sees whom inside a segment, in tokens before and after the query; None is no limit.

    Attributes:
        left: Tokens visible before the query.
        right: Tokens visible after it; 0 is causal.
        chunk: Also only inside the same chunk of this many tokens, counted from the segment's start.
    """

    left: int | None = None
    right: int | None = None
    chunk: int | None = None

    def narrowed(self, other: "SegmentRule") -> "SegmentRule":
        """Both rules at once."""
        if self.chunk is not None and other.chunk is not None and self.chunk != other.chunk:
            raise PadlessError(f"a mask with two chunk sizes, {self.chunk} and {other.chunk}, is not understood")
        return SegmentRule(
            left=_least(self.left, other.left),
            right=_least(self.right, other.right),
            chunk=self.chunk if self.chunk is not None else other.chunk,
        )


class MaskRequest:
    """What a model asked its mask function, not yet answered. Shared by all layers of one forward call."""

    def __init__(self, arguments: dict[str, Any]):
        self._arguments = arguments
        self._rule: SegmentRule | None = None
        self._answers: dict[str, torch.Tensor | None] = {}

    @property
    def padding(self) -> torch.Tensor | None:
        """The caller's 2-D mask, bool `[batch, keys]`, True for real tokens."""
        return self._arguments["attention_mask"]

    @functools.cached_property
    def has_zeros(self) -> bool:
        """Whether that mask hides a token."""
        return self.padding is not None and not bool(self.padding.all())

    @property
    def resets(self) -> bool:
        """Whether Transformers took the positions of this call for a packed row."""
        return any(_kind(part) in _PACKED for part in _walk(self._arguments["mask_function"]))

    def rule(self) -> SegmentRule:
        """The rule inside a segment.

        Raises:
            PadlessError: For a mask that is more than a window, a chunk and a direction.
        """
        if self._rule is None:
            self._rule = _read(self._arguments["mask_function"])
        return self._rule

    def dense(self, language: str) -> torch.Tensor | None:
        """The tensor that Transformers' own `"sdpa"` (bool) or `"eager"` (additive) attention would be given."""
        if language not in self._answers:
            build = {"sdpa": masking_utils.sdpa_mask, "eager": masking_utils.eager_mask}[language]
            self._answers[language] = build(**self._arguments)
        return self._answers[language]


def padless_mask(*args: Any, **kwargs: Any) -> MaskRequest:
    """Keep the question. Registered under the name `padless`; the signature is Transformers' own."""
    if args:
        raise PadlessError(
            "this version of Transformers calls mask functions in a way padless does not know; please report it"
        )
    kwargs.setdefault("attention_mask", None)
    kwargs.setdefault("mask_function", masking_utils.causal_mask_function)
    return MaskRequest(kwargs)


# Transformers composes masks from small functions. They are known by name and read by their closures; a function with
# any other name makes the rule unreadable, and the call is refused rather than guessed at.
_ALL = "and_masks.<locals>.and_mask"
_PACKED = (
    "packed_sequence_mask_function.<locals>.inner_mask",
    "remap_positions_for_packed_sequence.<locals>.inner_mask",
)
_LEAVES: dict[str, Callable[[dict[str, Any]], SegmentRule]] = {
    "causal_mask_function": lambda _: SegmentRule(right=0),
    "bidirectional_mask_function": lambda _: SegmentRule(),
    "sliding_window_overlay.<locals>.inner_mask": lambda seen: SegmentRule(left=int(seen["sliding_window"]) - 1),
    "sliding_window_bidirectional_overlay.<locals>.inner_mask": lambda seen: SegmentRule(
        left=int(seen["sliding_window"]), right=int(seen["sliding_window"])
    ),
    "chunked_overlay.<locals>.inner_mask": lambda seen: SegmentRule(chunk=int(seen["chunk_size"])),
    # What the boundaries say better; only its inner rule counts.
    "packed_sequence_mask_function.<locals>.inner_mask": lambda _: SegmentRule(),
}


def _read(function: Callable) -> SegmentRule:
    kind, seen = _kind(function), _closure(function)
    if kind == _ALL:
        rule = SegmentRule()
        for part in seen["mask_functions"]:
            rule = rule.narrowed(_read(part))
        return rule
    if kind == "remap_positions_for_packed_sequence.<locals>.inner_mask":
        return _read(seen["mask_function"])
    if kind in _LEAVES:
        return _LEAVES[kind](seen)
    raise PadlessError(
        f"the model asks for a mask with the part {kind!r}, which is more than a window, a chunk and a direction "
        "(blocks of image tokens that see each other, for example): packed attention would not follow it; run this "
        "model unpacked, or without that part"
    )


def _walk(function: Callable) -> list[Callable]:
    seen = _closure(function)
    inner = [*seen.get("mask_functions", ()), *([seen["mask_function"]] if callable(seen.get("mask_function")) else [])]
    return [function, *(part for each in inner for part in _walk(each))]


def _kind(function: Callable) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _closure(function: Callable) -> dict[str, Any]:
    cells = getattr(function, "__closure__", None) or ()
    names = function.__code__.co_freevars if cells else ()
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)
