"""A real row for the mask inspector: some of its tokens, with what a model and a loss get for each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from padless.corpus import TokenStore
from padless.corpus.tokenizer_files import open_tokenizer
from padless.errors import PadlessError
from padless.planning import Plan
from padless.rows import Batch
from padless.training import PackedDataset

__all__ = ["Gap", "ShownRow", "ShownSegment", "ShownToken", "choose_row", "pieces", "show_row"]

SHOWN_SEGMENTS = 5
SHOWN_TOKENS = 240
SHOWN_PADDING = 3
LOOKED_AT = 1000
SHOWN_LETTERS = 32
"""Of one token; there are tokens of a hundred blanks."""

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, kw_only=True)
class ShownToken:
    """One slot.

    Attributes:
        slot: Place in the row.
        token_id: What is in it.
        text: Its piece of the text; the id where there is no tokenizer, `""` for a part of a character.
        segment: From 1; 0 on padding.
        index: Place in the segment, which decides who sees whom; 0 on padding.
        position: The position id that the model gets.
        label: Unshifted; -100 where it is no target.
    """

    slot: int
    token_id: int
    text: str
    segment: int
    index: int
    position: int
    label: int


@dataclass(frozen=True)
class Gap:
    """Slots that are not shown."""

    count: int


@dataclass(frozen=True, kw_only=True)
class ShownSegment:
    """A segment: where it came from, and its beginning and end.

    Attributes:
        number: From 1.
        sample: Sample id.
        source, record: Where the sample was read.
        piece: `""`, or which tokens of the sample a split or truncated one holds.
        length: Real tokens.
        targets: How many of them enter the loss.
        shown: Tokens and gaps, in order; the last may be alignment padding.
    """

    number: int
    sample: int
    source: str
    record: int
    piece: str
    length: int
    targets: int
    shown: tuple[ShownToken | Gap, ...]


@dataclass(frozen=True, kw_only=True)
class ShownRow:
    """A row of the plan.

    Attributes:
        number: Which.
        capacity: Its slots.
        spans: `(first slot, real tokens, prefix)` of every segment, shown or not.
        prompts: Whether prefixes are prompts (tokens before the first target); if not, a third of each segment stands
            in for them, because nothing in the store says where a prefix would end.
        segments: The first few.
        hidden: Segments after them.
        padding: Tail padding: a few slots and a gap.
        decoded: Whether texts are texts; if not, `reason` says why.
    """

    number: int
    capacity: int
    spans: tuple[tuple[int, int, int], ...]
    prompts: bool
    segments: tuple[ShownSegment, ...]
    hidden: int
    padding: tuple[ShownToken | Gap, ...]
    decoded: bool
    reason: str = ""

    @property
    def tokens(self) -> list[ShownToken]:
        """Every slot that is shown, in order."""
        parts = [*(part for segment in self.segments for part in segment.shown), *self.padding]
        return [part for part in parts if isinstance(part, ShownToken)]

    @property
    def real_tokens(self) -> int:
        """Of the whole row."""
        return sum(length for _, length, _ in self.spans)


def choose_row(plan: Plan) -> int:
    """Of the first rows the one whose first segments differ most in length, so that there is something to see."""
    firsts = [plan.row(row)[2][:SHOWN_SEGMENTS].tolist() for row in range(min(plan.num_rows, LOOKED_AT))]
    return max(range(len(firsts)), key=lambda row: (len(set(firsts[row])), len(firsts[row]), -row))


def show_row(store: TokenStore, plan: Plan, number: int | None = None) -> ShownRow:
    """Read one row.

    Raises:
        PadlessError: When there is no row of that number.
    """
    number = choose_row(plan) if number is None else number
    if not 0 <= number < plan.num_rows:
        raise PadlessError(f"row {number} of a plan of {plan.num_rows:,} rows; rows count from 0")
    batch = PackedDataset(store, plan, pad_rows=True)[number]
    try:
        decode, reason = open_tokenizer(store.path, store.manifest).decode, ""
    except PadlessError as error:
        decode, reason = None, str(error)
    lengths, starts = batch.lengths.tolist(), batch.starts.tolist()
    prompts = [_prompt(batch.labels[start : start + length]) for start, length in zip(starts, lengths, strict=True)]
    known = max(prompts) > 1  # a segment's first token is never a target; alone it makes no prompt
    prefixes = prompts if known else [-(-length // 3) for length in lengths]
    shown = min(len(lengths), SHOWN_SEGMENTS)
    shares = _shares(lengths[:shown], SHOWN_TOKENS)
    end = int(batch.cu_seqlens_padded[-1])
    return ShownRow(
        number=number,
        capacity=plan.capacity,
        spans=tuple(zip(starts, lengths, prefixes, strict=True)),
        prompts=known,
        segments=tuple(_segment(store, plan, batch, number, at, shares[at], decode) for at in range(shown)),
        hidden=len(lengths) - shown,
        padding=_padding(batch, end, batch.num_slots),
        decoded=decode is not None,
        reason=reason,
    )


def pieces(ids: Sequence[int], decode: Decode) -> list[str]:
    """Each token's piece of the text that the tokens are together.

    A token alone is often no text: it may hold a part of a character, or a tokenizer may drop its leading blank. So
    texts of growing length are decoded, and a character belongs to the token that completes it.

    Example:
        >>> pieces(list("né!".encode()), lambda ids: bytes(ids).decode("utf-8", "replace"))
        ['n', '', 'é', '!']
    """
    found, done = [], ""
    for end in range(1, len(ids) + 1):
        whole = decode(ids[:end])
        if whole.endswith("\ufffd") and end < len(ids):
            found.append("")
        elif whole.startswith(done):
            found.append(whole[len(done) :])
            done = whole
        else:  # a tokenizer that mends blanks as it goes: its own word for this token
            found.append(decode(ids[end - 1 : end]))
            done = whole
    return found


def _segment(
    store: TokenStore, plan: Plan, batch: Batch, row: int, at: int, share: int, decode: Decode | None
) -> ShownSegment:
    sample_ids, starts, _ = plan.row(row)
    sample, begin = int(sample_ids[at]), int(starts[at])
    first, length = int(batch.starts[at]), int(batch.lengths[at])
    whole = int(store.lengths[sample])
    source, record = store.source_of(sample)
    head = length if share >= length else -(-2 * share // 3)
    tail = min(share, length) - head
    shown: list[ShownToken | Gap] = [*_tokens(batch, at + 1, first, first, head, decode)]
    if head + tail < length:
        shown.append(Gap(length - head - tail))
    shown += _tokens(batch, at + 1, first, first + length - tail, tail, decode)
    return ShownSegment(
        number=at + 1,
        sample=sample,
        source=source,
        record=record,
        piece="" if length == whole else f"tokens {begin:,} to {begin + length - 1:,} of {whole:,}",
        length=length,
        targets=int((batch.labels[first : first + length] >= 0).sum()),
        shown=(*shown, *_padding(batch, first + length, int(batch.cu_seqlens_padded[at + 1]))),
    )


def _tokens(batch: Batch, segment: int, start: int, first: int, count: int, decode: Decode | None) -> list[ShownToken]:
    ids = batch.input_ids[first : first + count].tolist()
    texts = [str(token) for token in ids] if decode is None else pieces(ids, decode)
    return [
        ShownToken(
            slot=first + i,
            token_id=ids[i],
            text=_visible(texts[i]),
            segment=segment,
            index=first + i - start,
            position=int(batch.position_ids[first + i]),
            label=int(batch.labels[first + i]),
        )
        for i in range(count)
    ]


def _padding(batch: Batch, first: int, end: int) -> tuple[ShownToken | Gap, ...]:
    shown = [
        ShownToken(
            slot=slot,
            token_id=int(batch.input_ids[slot]),
            text="pad",
            segment=0,
            index=0,
            position=int(batch.position_ids[slot]),
            label=int(batch.labels[slot]),
        )
        for slot in range(first, min(end, first + SHOWN_PADDING))
    ]
    left = end - first - len(shown)
    return (*shown, Gap(left)) if left > 0 else tuple(shown)


def _visible(text: str) -> str:
    """A newline as an arrow, a tab as one, other control characters as their pictures, and not too long."""
    pictures = {code: chr(0x2400 + code) for code in range(32)} | {10: "\u21b5", 9: "\u21e5", 127: "\u2421"}
    shown = text.translate(pictures)
    return shown if len(shown) <= SHOWN_LETTERS else shown[: SHOWN_LETTERS - 1] + "\u2026"


def _prompt(labels: np.ndarray) -> int:
    """Tokens before the first target; a segment without one is no prompt, it is nothing to answer."""
    targets = np.flatnonzero(labels >= 0)
    return int(targets[0]) if len(targets) else 0


def _shares(lengths: Sequence[int], budget: int) -> list[int]:
    """How many tokens of each segment to show: all of short ones, and what these leave to the longer ones.

    Example:
        >>> _shares([100, 4, 30], 44)
        [20, 4, 20]
    """
    shares = [0] * len(lengths)
    for rank, at in enumerate(sorted(range(len(lengths)), key=lambda i: (lengths[i], i))):
        shares[at] = min(lengths[at], budget // (len(lengths) - rank))
        budget -= shares[at]
    return shares
