"""What a user may say about a pack."""

from dataclasses import dataclass
from pathlib import Path

from padless.corpus.encode import Targets
from padless.corpus.writer import SHARD_TOKENS
from padless.errors import PadlessError
from padless.planning import PlanSpec

__all__ = ["PackRequest"]


@dataclass(frozen=True, kw_only=True)
class PackRequest:
    """Everything that a user may say about a pack.

    Attributes:
        inputs: Files, folders, globs, or `-` for standard input.
        tokenizer: `bytes`, a `tokenizer.json`, a tokenizer's folder, or a hub name.
        capacity: Tokens in a row.
        output: Folder of the store; made when missing.
        targets: Which tokens are trained on; None takes what the records suggest: `assistant` for messages,
            `completion` for pairs, `all` otherwise.
        field: The field that holds the data, `"PROMPT,COMPLETION"` for a pair; None finds it.
        chat_template: A file, `chatml`, or None for the tokenizer's own.
        template_date: What a template's `strftime_now` sees, as YYYY-MM-DD; None leaves it undefined, because data that
            depends on the day it was packed cannot be made again.
        eod: Token or id that ends a sample, in place of the tokenizer's own.
        add_eod: End every sample with exactly one EOD.
        oversize: `error`, `truncate`, `split` or `drop`.
        strategy: How rows are planned.
        align: Each segment takes a multiple of this many slots.
        max_segments: Most segments in a row.
        seed: Which samples share a row.
        on_bad_record: `error` ends the run at the first; `skip` goes on and writes `rejected.jsonl`.
        workers: Processes that encode; the bytes are the same for any number.
        shard_tokens: Tokens in a shard.
        part_bytes: Neighbouring files with this many bytes together are a part; a shard holds samples of one part, so
            that parts can be packed anywhere. None: the whole corpus is one.
    """

    inputs: tuple[str, ...]
    tokenizer: str
    capacity: int
    output: Path
    targets: Targets | None = None
    field: str | None = None
    chat_template: str | None = None
    template_date: str | None = None
    eod: str | int | None = None
    add_eod: bool = True
    oversize: str = "error"
    strategy: str = "best-fit-decreasing"
    align: int = 1
    max_segments: int | None = None
    seed: int = 0
    on_bad_record: str = "error"
    workers: int = 1
    shard_tokens: int = SHARD_TOKENS
    part_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.capacity < 2:
            raise PadlessError(
                f"capacity {self.capacity} is too small: a row needs at least 2 tokens, one to predict from and one to "
                f"predict"
            )
        if self.eod is not None and not self.add_eod:
            raise PadlessError(f"eod {self.eod!r} is named and EOD is switched off; ask for one of the two")
        if self.on_bad_record not in ("error", "skip"):
            raise PadlessError(f"on_bad_record is 'error' or 'skip', not {self.on_bad_record!r}")
        if self.workers < 1:
            raise PadlessError(f"workers must be at least 1, not {self.workers}")
        if self.shard_tokens < 1:
            raise PadlessError(f"shard_tokens must be at least 1, not {self.shard_tokens}")
        if self.part_bytes is not None and self.part_bytes < 1:
            raise PadlessError(f"part_bytes must be at least 1, not {self.part_bytes}")
        _ = self.spec

    @property
    def spec(self) -> PlanSpec:
        """The rows that are asked for."""
        return PlanSpec(
            capacity=self.capacity,
            strategy=self.strategy,
            seed=self.seed,
            align=self.align,
            max_segments=self.max_segments,
            oversize=self.oversize,
        )
