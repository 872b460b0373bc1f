"""Records to tokens and targets.

Texts are encoded whole, so that a sample's tokens are those that its text always gets; which of them are targets
follows from characters. **A token is a target when it holds at least one character of the target text**: so no part
of a completion goes untrained, and a token across the border also carries the end of the prompt (counted as
`straddling`). Special tokens that are written out in a text are read as such, as their tokenizer always does.

**EOD.** A sample ends with exactly one. Where the text, the template or the record already ends with one it is not
doubled, and of several only the first is kept. What a chat template writes after the last EOD, if it is only blanks, is
left out: a model that has ended never writes it. EOD is a target where the sample's end is one: with all targets and in
a completion always, with the assistant's turns when the last turn is the assistant's, in records that bring tokens when
their last token is a target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from padless.corpus.records import Chat, Ids, Pair, Parsed, RecordError, Shape, parse
from padless.corpus.shard import token_dtype
from padless.corpus.sources import BadRecord, RawBatch
from padless.corpus.spans import Span, SpanIds
from padless.corpus.templates import ChatTemplate
from padless.corpus.tokenizers import Tokenizer
from padless.errors import PadlessError

__all__ = ["EncodedSample", "Encoder", "Targets"]

Targets = Literal["all", "completion", "assistant"]


class EncodedSample(NamedTuple):
    """One sample.

    Attributes:
        number: Of its record in the source.
        ids: `uint[n]`, the smallest type that holds the vocabulary.
        spans: Targets as `(first, end)`, ascending and apart, never with token 0; None: every token but the first.
        straddling: Tokens across the border of target text and other text.
        surplus_eod: EOD tokens at the end that were left out, because one is enough.
    """

    number: int
    ids: np.ndarray
    spans: tuple[Span, ...] | None
    straddling: int = 0
    surplus_eod: int = 0

    @property
    def num_targets(self) -> int:
        """How many tokens enter the loss."""
        if self.spans is None:
            return max(len(self.ids) - 1, 0)
        return sum(end - first for first, end in self.spans)

    def target_mask(self) -> np.ndarray:
        """`bool[n]`: the targets."""
        mask = np.zeros(len(self.ids), np.bool_)
        for first, end in ((1, len(mask)),) if self.spans is None else self.spans:
            mask[first:end] = True
        return mask


class _Draft(NamedTuple):
    """A record that waits for its tokens."""

    slot: int
    number: int
    text: str
    pieces: list[Span] | None
    ends_in_target: bool


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Turns raw batches into samples. It holds no state between batches, so workers may take them in any order.

    Args:
        tokenizer: From `load_tokenizer`.
        shape: From `detect_shape`.
        targets: `all`: every token but the first; `completion`: the completion of a pair; `assistant`: the turns of the
            assistant. Records with `input_ids` bring their own targets, which `all` respects too.
        template: Renders messages, and pairs of strings as one user and one assistant turn. None: pairs of strings are
            written one after the other.
        add_eod: End every sample with exactly one EOD.

    Raises:
        PadlessError: When these do not go together.

    Example:
        >>> from padless.corpus.tokenizers import load_tokenizer
        >>> shape = Shape(kind="pair", fields=("prompt", "completion"))
        >>> encoder = Encoder(tokenizer=load_tokenizer("bytes"), shape=shape, targets="completion")
        >>> [sample] = encoder.encode_parsed([(1, Pair("ab", "c"))])
        >>> sample.ids.tolist(), sample.spans
        ([97, 98, 99, 256], ((2, 4),))
    """

    tokenizer: Tokenizer
    shape: Shape
    targets: Targets = "all"
    template: ChatTemplate | None = None
    add_eod: bool = True

    def __post_init__(self) -> None:
        if self.targets not in get_args(Targets):
            raise PadlessError(f"targets are one of {', '.join(get_args(Targets))}; got {self.targets!r}")
        if self.add_eod and self.tokenizer.eod_id is None:
            raise PadlessError(
                f"the tokenizer {self.tokenizer.name} has no EOD token to end samples with; name one of its tokens "
                f"(--eod TOKEN), or ask for samples without EOD (--no-eod)"
            )
        problem = self._misfit()
        if problem:
            raise PadlessError(f"targets {self.targets!r} do not go with records of {self.shape}: {problem}")

    def encode(self, batch: RawBatch) -> list[EncodedSample | BadRecord]:
        """One item per record of the batch, in order."""
        bad: dict[int, BadRecord] = {}
        parsed: list[tuple[int, Parsed]] = []
        for record in batch.records():
            if isinstance(record, BadRecord):
                bad[record.number] = record
                continue
            try:
                parsed.append((record.number, parse(record.fields, self.shape)))
            except RecordError as error:
                bad[record.number] = batch.source.bad(record.number, str(error), str(record.fields))
        done = self.encode_parsed(parsed)
        for at, item in enumerate(done):
            if isinstance(item, RecordError):
                number = parsed[at][0]
                bad[number] = batch.source.bad(number, str(item), str(parsed[at][1]))
        good = [item for item in done if isinstance(item, EncodedSample)]
        if not bad:
            return list(good)
        return sorted([*good, *bad.values()], key=lambda item: item.number)

    def encode_parsed(self, records: Sequence[tuple[int, Parsed]]) -> list[EncodedSample | RecordError]:
        """The same for parsed records with their numbers; a record that cannot be a sample gives its error."""
        out: list[EncodedSample | RecordError | None] = [None] * len(records)
        drafts: list[_Draft] = []
        for slot, (number, parsed) in enumerate(records):
            try:
                if isinstance(parsed, Ids):
                    out[slot] = self._from_ids(number, parsed)
                else:
                    drafts.append(_Draft(slot, number, *self._written(parsed)))
            except RecordError as error:
                out[slot] = error
        for draft, tokens in zip(drafts, self._tokens(drafts), strict=True):
            try:
                out[draft.slot] = self._from_text(draft, tokens)
            except RecordError as error:
                out[draft.slot] = error
        return [item for item in out if item is not None]

    @property
    def uses_template(self) -> bool:
        """Whether records are rendered by the template."""
        return self.shape.kind == "messages" or (self.shape.kind == "pair" and self.template is not None)

    @property
    def _eod(self) -> int:
        assert self.tokenizer.eod_id is not None  # held by __post_init__ when EODs are added
        return self.tokenizer.eod_id

    def _misfit(self) -> str | None:
        kind, wanted = self.shape.kind, self.targets
        if kind == "messages" and self.template is None:
            return "messages need a chat template"
        if kind == "text" and self.template is not None:
            return "a chat template renders messages or pairs"
        if kind == "text" and wanted != "all":
            return "plain text has no prompt to leave out; use all"
        if kind == "ids" and wanted != "all" and not {"labels", "loss_mask"} & set(self.shape.extras):
            return "the records have neither labels nor loss_mask, so what is a target is not known; use all"
        if kind == "messages" and wanted == "completion":
            return "messages have no completion; use assistant"
        if kind == "pair" and wanted == "assistant" and self.template is None:
            return "without a chat template there are no turns; use completion, or give a template"
        return None

    def _written(self, parsed: str | Pair | Chat) -> tuple[str, list[Span] | None, bool]:
        """The text of a record, its target pieces (None: all of it), and whether its end is a target."""
        if isinstance(parsed, str):
            return parsed, None, True
        if isinstance(parsed, Pair) and isinstance(parsed.prompt, str) and self.template is None:
            text = parsed.prompt + str(parsed.completion)
            return text, None if self.targets == "all" else [(len(parsed.prompt), len(text))], True
        if self.template is None:
            raise RecordError("prompt and completion are messages here, which need a chat template")
        prompt, chat = _as_chat(parsed)
        if self.targets == "all":
            return self._ended(self.template.render(chat), None, True)
        if self.targets == "completion":
            return self._ended(*self.template.completion_span(prompt, chat), True)
        ends_in_target = chat.messages[-1]["role"] == "assistant"
        return self._ended(*self.template.assistant_spans(chat), ends_in_target)

    def _ended(self, text: str, pieces: list[Span] | None, ends_in_target: bool) -> tuple[str, list[Span] | None, bool]:
        """Leave out the blanks that a template writes after the last EOD."""
        eod = self.tokenizer.token_text(self.tokenizer.eod_id) if self.add_eod else None
        if eod:
            shorter = text.rstrip()
            if len(shorter) < len(text) and shorter.endswith(eod):
                size = len(shorter)
                pieces = pieces and [(a, min(b, size)) for a, b in pieces if a < size]
                text = shorter
        return text, pieces, ends_in_target

    def _tokens(self, drafts: list[_Draft]) -> Sequence[SpanIds | list[int]]:
        texts = [draft.text for draft in drafts]
        special = not self.uses_template  # a template writes its own beginning
        if self.targets == "all":
            return self.tokenizer.encode_batch(texts, special_tokens=special)
        pieces = [draft.pieces or [] for draft in drafts]
        return self.tokenizer.encode_spans(texts, pieces, special_tokens=special)

    def _from_text(self, draft: _Draft, tokens: SpanIds | list[int]) -> EncodedSample:
        if isinstance(tokens, list):
            ids, spans, straddling = tokens, None, 0
        else:
            ids, spans, straddling = tokens.ids, tokens.spans, tokens.straddling
        if not ids:
            raise RecordError("the tokenizer gives no token for it: there is nothing to train on")
        surplus = 0
        if self.add_eod:
            size = _without_eod(ids, self._eod)
            surplus = max(len(ids) - size - 1, 0)
            if size == len(ids):
                ids.append(self._eod)
            del ids[size + 1 :]
            if spans is not None and draft.ends_in_target:
                spans = [*spans, (size, size + 1)]
        array = np.array(ids, token_dtype(self.tokenizer.vocab_size))
        return _checked(draft.number, array, spans, straddling, surplus)

    def _from_ids(self, number: int, parsed: Ids) -> EncodedSample:
        ids, mask = parsed
        outside = np.flatnonzero((ids < 0) | (ids >= self.tokenizer.vocab_size))
        if len(outside):
            at = int(outside[0])
            raise RecordError(
                f"token {at} has the id {int(ids[at])}, outside the vocabulary of {self.tokenizer.name} "
                f"(0 to {self.tokenizer.vocab_size - 1}); was it made by another tokenizer?"
            )
        surplus = 0
        if self.add_eod:
            others = np.flatnonzero(ids != self._eod)
            size = int(others[-1]) + 1 if len(others) else 0
            surplus = max(len(ids) - size - 1, 0)
            is_target = mask is not None and bool(mask[min(size, len(ids) - 1)])
            ids = np.append(ids[:size], self._eod)
            mask = None if mask is None else np.append(mask[:size], is_target)
        spans = None if mask is None else _runs(mask)
        return _checked(number, ids.astype(token_dtype(self.tokenizer.vocab_size)), spans, 0, surplus)


def _as_chat(parsed: Pair | Chat) -> tuple[list[dict], Chat]:
    """The messages of the prompt, and all messages."""
    if isinstance(parsed, Chat):
        return [], parsed
    prompt, completion = parsed
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
        completion = [{"role": "assistant", "content": completion}]
    return prompt, Chat([*prompt, *completion])  # type: ignore[list-item]  # parse made both of one kind


def _without_eod(ids: list[int], eod: int) -> int:
    """How many tokens there are before the EODs at the end."""
    size = len(ids)
    while size and ids[size - 1] == eod:
        size -= 1
    return size


def _checked(
    number: int, ids: np.ndarray, spans: Sequence[Span] | None, straddling: int, surplus: int
) -> EncodedSample:
    joined = None if spans is None else _joined(spans, len(ids))
    sample = EncodedSample(number, ids, joined, straddling, surplus)
    if not sample.num_targets:
        raise RecordError("it has no target: it would take room in a row and teach nothing")
    return sample


def _joined(spans: Sequence[Span], size: int) -> tuple[Span, ...]:
    """Spans inside the sample, never with token 0, those that touch made one."""
    out: list[Span] = []
    for first, end in spans:
        first, end = max(first, 1), min(end, size)  # noqa: PLW2901
        if first >= end:
            continue
        if out and first <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((first, end))
    return tuple(out)


def _runs(mask: np.ndarray) -> list[Span]:
    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))
