"""Which tokens hold a piece of a text.

The general way asks the tokenizer for offsets, which it has to keep for every token. Byte-level tokenizers (GPT-2 and
most that came after) write every byte of the text into exactly one token, so there the lengths of tokens in bytes say
the same, and the tokenizer can leave the offsets out.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tokenizers

__all__ = ["Span", "SpanIds", "byte_lengths", "span_ids", "spans_by_bytes"]

Span = tuple[int, int]


class SpanIds(NamedTuple):
    """One text's tokens, and which of them hold the pieces that were asked for.

    Attributes:
        ids: The tokens of the whole text.
        spans: One `(first, end)` of tokens per piece: every token that holds at least one of its characters.
        straddling: How many of these tokens also hold characters outside the piece.
    """

    ids: list[int]
    spans: list[Span]
    straddling: int


def span_ids(encoding: tokenizers.Encoding, text: str, spans: Sequence[Span]) -> SpanIds:
    """Pieces of a text in its tokens, from the offsets that the tokenizer keeps."""
    ids = encoding.ids
    out: list[Span] = []
    straddling = 0
    for start, end in spans:
        first = _token_at(encoding, range(start, end))
        if first is None:  # no token holds any of it, e.g. spaces that the tokenizer drops
            after = _token_at(encoding, range(end, len(text)))
            out.append((len(ids), len(ids)) if after is None else (after, after))
            continue
        last = _token_at(encoding, range(end - 1, start - 1, -1)) or first
        while last + 1 < len(ids) and _holds(encoding.token_to_chars(last + 1), start, end):
            last += 1  # several tokens can share one character: its bytes
        out.append((first, last + 1))
        edges = [encoding.token_to_chars(token) for token in {first, last}]
        straddling += sum(a < start or b > end for a, b in filter(None, edges))
    return SpanIds(ids, out, straddling)


def _token_at(encoding: tokenizers.Encoding, characters: range) -> int | None:
    for character in characters:
        token = encoding.char_to_token(character)
        if token is not None:
            return token
    return None


def _holds(chars: Span | None, start: int, end: int) -> bool:
    return chars is not None and chars[0] < end and chars[1] > start


def byte_lengths(definition: dict[str, Any], vocabulary: dict[str, int], added: dict[int, str]) -> np.ndarray | None:
    """`int64[V]`: how many bytes of text each token holds; None when the tokenizer is not plainly byte-level.

    Args:
        definition: Content of `tokenizer.json`.
        vocabulary: Token to id. Byte-level tokens are written with one character per byte.
        added: Id to text of the tokens that are looked for in texts as they are written.
    """
    splits = definition.get("pre_tokenizer") or {}
    steps = splits.get("pretokenizers", [splits])
    kinds = [step.get("type") for step in steps]
    keeps_text = (
        not definition.get("normalizer")
        and kinds
        and kinds[-1] == "ByteLevel"
        and set(kinds[:-1]) <= {"Split", "Digits"}
        and not steps[-1].get("add_prefix_space")
        and not any(step.get("behavior") == "Removed" for step in steps)
    )
    if not keeps_text:
        return None
    sizes = np.zeros(max(vocabulary.values()) + 1, np.int64)
    for token, number in vocabulary.items():
        sizes[number] = len(added[number].encode()) if number in added else len(token)
    return sizes


def spans_by_bytes(
    encoded: Sequence[list[int]],
    texts: Sequence[str],
    pieces: Sequence[Sequence[Span]],
    token_bytes: np.ndarray,
    frame: tuple[int, int],
) -> list[SpanIds | None]:
    """What `span_ids` finds, from the bytes of tokens; None for a text whose tokens do not add up to its bytes.

    Args:
        encoded: Tokens of each text.
        texts: The texts.
        pieces: What to look for in each, as characters.
        token_bytes: From `byte_lengths`.
        frame: How many tokens stand before and after each text without being in it.
    """
    before, after = frame
    counts = np.array([len(ids) for ids in encoded], np.int64)
    flat = np.fromiter(itertools.chain.from_iterable(encoded), np.int64, int(counts.sum()))
    sizes = token_bytes[flat]
    firsts = (np.cumsum(counts) - counts).tolist()
    out: list[SpanIds | None] = []
    for first, ids, text, spans in zip(firsts, encoded, texts, pieces, strict=True):
        ends = sizes[first + before : first + len(ids) - after].cumsum()
        total = len(text) if text.isascii() else len(text.encode())
        out.append(_by_ends(ids, text, spans, ends, before) if len(ends) and ends[-1] == total else None)
    return out


def _by_ends(ids: list[int], text: str, spans: Sequence[Span], ends: np.ndarray, before: int) -> SpanIds:
    """Spans of one text, given after how many bytes each of its tokens ends."""
    out: list[Span] = []
    straddling = 0
    total = int(ends[-1])
    for span in spans:
        start, end = span if len(text) == total else [len(text[:at].encode()) for at in span]
        first = int(ends.searchsorted(start, "right"))
        if start == end:
            out.append((first + before, first + before))
            continue
        stop = len(ends) if end == total else int(ends.searchsorted(end, "left")) + 1
        out.append((first + before, stop + before))
        opens_early = start != (ends[first - 1] if first else 0)
        closes_late = ends[stop - 1] != end
        straddling += int(opens_early or closes_late) if stop - first == 1 else int(opens_early) + int(closes_late)
    return SpanIds(ids, out, straddling)
