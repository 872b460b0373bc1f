"""Who may attend to whom inside a segment."""

from dataclasses import dataclass
from typing import Literal, get_args

from padless.errors import PadlessError

Kind = Literal["causal", "bidirectional", "prefix-lm", "block-causal"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Query q attends key k iff both are real, in the same segment, and `rank[k] <= rank[q]`.

    The kind says where ranks come from: `"causal"` ranks by the index in the segment, `"bidirectional"` gives every
    token rank 0, `"prefix-lm"` gives the prefix rank 0 and counts up behind it, `"block-causal"` takes the block
    numbers that come with the samples (pi0: images and prompt 0, state 1, actions 2). Three refinements only ever
    take pairs away, except `visibility`, which takes the place of the order:

    Attributes:
        kind: Where ranks come from.
        window: `(left, right)`, inclusive, in tokens of the segment: also `q - left <= k <= q + right`. `None` on a
            side means no limit there. A model's `sliding_window = W` that counts the query itself is `(W - 1, None)`.
        chunk: Also `index(q) // chunk == index(k) // chunk`, counted from the segment's first token.
        visibility: `visibility[rank[q]][rank[k]]` decides instead of `rank[k] <= rank[q]`, for what no order can say
            (actions that must not see the text between). Only with `"block-causal"`; every rank sees itself.

    Raises:
        PadlessError: When a value makes no sense, or would leave a token with nothing to attend to.

    Example:
        >>> Rule()
        Rule(causal)
        >>> Rule(kind="prefix-lm", window=(127, None))
        Rule(prefix-lm, window=(127, None))
    """

    kind: Kind = "causal"
    window: tuple[int | None, int | None] | None = None
    chunk: int | None = None
    visibility: tuple[tuple[bool, ...], ...] | None = None

    def __post_init__(self):
        if self.kind not in get_args(Kind):
            raise PadlessError(f"rule kind {self.kind!r} is unknown; there are {', '.join(get_args(Kind))}")
        if self.window is not None:
            object.__setattr__(self, "window", _checked_window(self.window))
        if self.chunk is not None and self.chunk < 1:
            raise PadlessError(f"chunk={self.chunk} would hold no token; give at least 1")
        if self.visibility is not None:
            object.__setattr__(self, "visibility", _checked_visibility(self.kind, self.visibility))

    @property
    def has_ranks(self) -> bool:
        """Whether a batch under this rule must say each token's rank; the other kinds follow from the index."""
        return self.kind in ("prefix-lm", "block-causal")

    def __repr__(self) -> str:
        extras = [f"{name}={value}" for name in ("window", "chunk") if (value := getattr(self, name)) is not None]
        if self.visibility is not None:
            extras.append("visibility=" + "/".join("".join("01"[v] for v in row) for row in self.visibility))
        return f"Rule({', '.join([self.kind, *extras])})"


def _checked_window(window) -> tuple[int | None, int | None] | None:
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise PadlessError(f"window={window!r} must be (left, right); for the last W tokens give (W - 1, None)")
    for side, value in zip(("left", "right"), window, strict=True):
        if value is not None and value < 0:
            raise PadlessError(f"window {side}={value} is below 0; None means no limit, 0 stops at the query itself")
    return None if tuple(window) == (None, None) else tuple(window)


def _checked_visibility(kind: str, visibility) -> tuple[tuple[bool, ...], ...]:
    if kind != "block-causal":
        raise PadlessError(f"visibility needs kind='block-causal', whose ranks are block numbers; got {kind!r}")
    table = tuple(tuple(bool(cell) for cell in row) for row in visibility)
    if not table or any(len(row) != len(table) for row in table):
        raise PadlessError(f"visibility must be a square table of rank x rank; got rows of {[len(r) for r in table]}")
    blind = [rank for rank, row in enumerate(table) if not row[rank]]
    if blind:
        raise PadlessError(f"visibility hides ranks {blind} from themselves; a token must at least see itself")
    return table
