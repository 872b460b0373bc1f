"""Samples longer than a row: seen while they are written, because only then are their files and lines at hand."""

from collections.abc import Sequence

import numpy as np

from padless.corpus.shard import Block, Shard
from padless.corpus.sources import Source
from padless.errors import PadlessError
from padless.planning import PlanSpec

__all__ = ["OversizeWatch"]

SHOWN = 5


class OversizeWatch:
    """Under the policy `error`, end the run at the fifth sample that fits no row, or at the end when there are fewer.

    Other policies need no watch: the plan cuts, splits or drops, and counts.
    """

    def __init__(self, sources: Sequence[Source], spec: PlanSpec) -> None:
        self._sources = sources
        self._spec = spec
        self._found: list[str] = []

    def block(self, block: Block) -> None:
        """Look at samples that are about to be written."""
        self._look(block.lengths, block.sources, block.records)

    def shard(self, shard: Shard) -> None:
        """Look at samples that an earlier run has written."""
        self._look(np.diff(shard.offsets), shard.sources, shard.records)

    def finish(self) -> None:
        """Raise if any sample was too long."""
        if self._found:
            raise PadlessError(self._message("all of them"))

    def _look(self, lengths: np.ndarray, sources: np.ndarray, records: np.ndarray) -> None:
        if self._spec.oversize != "error":
            return
        for at in np.flatnonzero(lengths > self._spec.limit)[: SHOWN - len(self._found)].tolist():
            where = self._sources[int(sources[at])].where(int(records[at]))
            self._found.append(f"{where} ({lengths[at]:,} tokens)")
        if len(self._found) == SHOWN:
            raise PadlessError(self._message(f"the first {SHOWN}"))

    def _message(self, which: str) -> str:
        row = f"a row of {self._spec.limit:,} tokens"
        return (
            f"samples longer than {row}, {which}: {', '.join(self._found)}. Say what becomes of such samples: "
            f"--oversize truncate (keep the first {self._spec.limit:,} tokens), split (into pieces in several rows) or "
            f"drop, or give a larger --capacity"
        )
