"""Rules that take visual tokens away: drop a view, keep every n-th frame, cap the resolution.

This is not padding removal. What is taken away was real, and a model may need it: see `padless ablate`. So a rule is
written down, its cost and gain are counted before anything is trained, and the plan that comes of it carries the rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from padless.errors import PadlessError
from padless.lengths.media_table import MediaTable
from padless.rows.grids import PatchGrid


@dataclass(frozen=True, kw_only=True)
class PruningRule:
    """One rule, written `drop:VIEW`, `every:N[:VIEW]` or `cap:PIXELS[:VIEW]`.

    Attributes:
        kind: `"drop"` the view; keep `"every"` n-th frame, the first one included; `"cap"` the pixels of a frame, sides
            kept in proportion.
        amount: N, or pixels; 0 for a drop.
        view: Whose; None is every view.

    Example:
        >>> PruningRule.parse("every:2:wrist"), str(PruningRule.parse("cap:50176"))
        (PruningRule(kind='every', amount=2, view='wrist'), 'cap:50176')
        >>> PruningRule.parse("drop")
        Traceback (most recent call last):
            ...
        padless.errors.PadlessError: a pruning rule is drop:VIEW, every:N[:VIEW] or cap:PIXELS[:VIEW], not 'drop'
    """

    kind: Literal["drop", "every", "cap"]
    amount: int = 0
    view: str | None = None

    def __post_init__(self) -> None:
        least = {"drop": 0, "every": 2, "cap": 1}[self.kind]
        if self.amount < least or (self.kind == "drop" and (self.amount or self.view is None)):
            raise PadlessError(f"{self} takes nothing away: drop needs a view, every starts at 2, cap at 1 pixel")

    @classmethod
    def parse(cls, text: str) -> "PruningRule":
        """Read a rule from the command line."""
        kind, _, rest = text.partition(":")
        amount, _, view = rest.partition(":")
        if kind == "drop" and rest:
            return cls(kind="drop", view=rest)
        if kind == "every" and amount.isdecimal():
            return cls(kind="every", amount=int(amount), view=view or None)
        if kind == "cap" and amount.isdecimal():
            return cls(kind="cap", amount=int(amount), view=view or None)
        raise PadlessError(f"a pruning rule is drop:VIEW, every:N[:VIEW] or cap:PIXELS[:VIEW], not {text!r}")

    def __str__(self) -> str:
        amount = [] if self.kind == "drop" else [str(self.amount)]
        return ":".join([self.kind, *amount, *([self.view] if self.view else [])])

    def apply(self, table: MediaTable) -> MediaTable:
        """The table without what the rule takes away.

        Raises:
            PadlessError: When there is no such view.
        """
        if self.view is not None and self.view not in table.names:
            raise PadlessError(f"{self}: there is no view {self.view!r}; there are {', '.join(table.names)}")
        mine = np.ones(len(table.slot), bool) if self.view is None else table.slot == table.names.index(self.view)
        if self.kind == "drop":
            columns = ("sample", "slot", "frames", "height", "width")
            return replace(table, **{name: getattr(table, name)[~mine] for name in columns})
        if self.kind == "every":
            return replace(table, frames=np.where(mine, -(-table.frames // self.amount), table.frames))
        scale = np.sqrt(np.minimum(1.0, self.amount / (table.height * table.width)))
        height, width = (
            np.where(mine, np.maximum(1, np.floor(side * scale)).astype(np.int64), side)
            for side in (table.height, table.width)
        )
        return replace(table, height=height, width=width)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pruned:
    """What rules do to a data set.

    Attributes:
        rules: The rules, in the order they were applied.
        before: int64[N], tokens of each sample.
        after: int64[N], tokens of each sample under the rules.
        views: Slot name to its tokens `(before, after)`.
        sizes: Sizes of the patches that tokens were counted with.

    Example:
        >>> from padless.rows.grids import SIGLIP_224
        >>> view = {"frames": 1, "height": 480, "width": 640}
        >>> record = {"text": 20, "media": [{"name": "base", **view}, {"name": "wrist", **view}]}
        >>> pruned = prune(MediaTable.of([record]), [PruningRule.parse("drop:wrist")], SIGLIP_224)
        >>> pruned.before, pruned.after, pruned.views["wrist"]
        (array([532]), array([276]), (256, 0))
    """

    rules: tuple[PruningRule, ...]
    before: np.ndarray
    after: np.ndarray
    views: dict[str, tuple[int, int]]
    sizes: PatchGrid

    def __str__(self) -> str:
        return ", ".join(map(str, self.rules))


def prune(table: MediaTable, rules: Sequence[PruningRule], sizes: PatchGrid) -> Pruned:
    """Count the tokens of every sample before and after the rules.

    Args:
        table: The data set.
        rules: Applied one after the other.
        sizes: How pixels become tokens.

    Raises:
        PadlessError: When a rule names a view that does not exist, changes nothing, or leaves a sample empty.
    """
    left = table
    for rule in rules:
        was, left = left, rule.apply(left)
        if _tokens(was, sizes).sum() == _tokens(left, sizes).sum():
            raise PadlessError(
                f"{rule} takes no token away: views of {sizes} keep their tokens under it, or there is none left"
            )
    before, after = (_lengths(each, sizes) for each in (table, left))
    if (before == 0).any():
        raise PadlessError(f"sample {int(np.argmin(before))} holds no token and no view; drop and count it")
    if (after == 0).any():
        raise PadlessError(f"{', '.join(map(str, rules))} leave sample {int(np.argmin(after))} without a token")
    of = [np.bincount(each.slot, weights=_tokens(each, sizes), minlength=len(table.names)) for each in (table, left)]
    views = {name: (int(of[0][i]), int(of[1][i])) for i, name in enumerate(table.names)}
    return Pruned(rules=tuple(rules), before=before, after=after, views=views, sizes=sizes)


def _lengths(table: MediaTable, sizes: PatchGrid) -> np.ndarray:
    tokens = np.bincount(table.sample, weights=_tokens(table, sizes), minlength=table.num_samples)
    return table.text + tokens.astype(np.int64)


def _tokens(table: MediaTable, sizes: PatchGrid) -> np.ndarray:
    """int64[M], tokens of each view; views of one size are counted once."""
    shapes, which = np.unique(np.stack([table.frames, table.height, table.width], axis=1), axis=0, return_inverse=True)
    grids = [sizes.image(h, w) if t == 1 else sizes.frames(t, h, w) for t, h, w in shapes.tolist()]
    return np.array([sizes.tokens(grid) for grid in grids], dtype=np.int64)[which.reshape(-1)]
