"""The row of the mask inspector: what is shown is what is in the batch, and what is left out is counted."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from padless import PackedDataset, TokenStore, plan
from padless.corpus.tokenizers import BytesTokenizer
from padless.errors import PadlessError
from padless.report import make_report
from padless.report.row import Gap, ShownRow, ShownToken, pieces, show_row


def row_of(store: TokenStore, number: int | None = None) -> ShownRow:
    return show_row(store, store.plan(), number)


def shown_parts(row: ShownRow) -> list[ShownToken | Gap]:
    return [*(part for segment in row.segments for part in segment.shown), *row.padding]


def test_every_shown_token_is_that_of_the_batch(store: TokenStore) -> None:
    dataset = PackedDataset(store, pad_rows=True)
    for number in range(len(dataset)):
        row, batch = row_of(store, number), dataset[number]
        for token in row.tokens:
            slot = token.slot
            assert token.token_id == batch.input_ids[slot]
            assert token.segment == batch.segment_ids[slot]
            assert token.label == batch.labels[slot]
            assert token.position == batch.position_ids[slot]
        assert [span[0] for span in row.spans] == batch.starts.tolist()
        assert [span[1] for span in row.spans] == batch.lengths.tolist()
        assert row.real_tokens == batch.num_tokens


@pytest.mark.parametrize("capacity", [64, 600, 4096])
def test_shown_and_left_out_slots_add_up(make_store: Callable[..., TokenStore], capacity: int) -> None:
    records = [{"prompt": "p" * 9, "completion": "c" * (1 + 37 * n % 50)} for n in range(30)]
    store = make_store(records, capacity=capacity, align=8)
    row = row_of(store)
    widths = [-(-length // 8) * 8 for _, length, _ in row.spans]
    slots = sum(part.count if isinstance(part, Gap) else 1 for part in shown_parts(row))
    assert slots + sum(widths[len(row.segments) :]) == capacity
    assert len(row.segments) + row.hidden == len(row.spans)
    assert len(row.tokens) < 300
    assert [t.slot for t in row.tokens] == sorted(t.slot for t in row.tokens)


def test_a_long_segment_shows_its_beginning_and_its_end(make_store: Callable[..., TokenStore]) -> None:
    store = make_store([{"prompt": "p", "completion": "c" * 5000}], capacity=8192)
    [segment] = row_of(store).segments
    head, gap, tail = segment.shown[0], segment.shown[160], segment.shown[-1]
    assert isinstance(head, ShownToken)
    assert isinstance(tail, ShownToken)
    assert (head.index, tail.index, gap) == (0, 5001, Gap(5002 - 240))


def test_prefixes_are_prompts_where_there_are_prompts(make_store: Callable[..., TokenStore]) -> None:
    records = [{"prompt": "p" * n, "completion": "c"} for n in (5, 9, 3)]
    row = row_of(make_store(records))
    assert row.prompts
    assert sorted(prefix for _, _, prefix in row.spans) == [3, 5, 9]


def test_without_prompts_a_third_stands_in_and_the_page_says_so(tmp_path) -> None:
    store = TokenStore.write(tmp_path / "ids", [[5] * 9, [6] * 4], vocab_size=10)
    store.add_plan(plan(store.lengths, 16))
    row = row_of(store)
    assert not row.prompts
    assert sorted(prefix for _, _, prefix in row.spans) == [2, 3]
    assert not row.decoded
    page = make_report(store).html()
    assert "this store has no prompts" in page
    assert "Token ids instead of text: " in page


@given(st.text(max_size=40))
def test_pieces_are_the_text_cut_up(text: str) -> None:
    tokenizer = BytesTokenizer()
    [ids] = tokenizer.encode_batch([text])
    found = pieces(ids, tokenizer.decode)
    assert len(found) == len(ids)
    assert "".join(found) == text


def test_pieces_of_half_a_character_are_shown_for_what_they_are() -> None:
    assert pieces(list("aé".encode())[:2], BytesTokenizer().decode) == ["a", "\ufffd"]


def test_letters_that_cannot_be_seen_become_ones_that_can(make_store: Callable[..., TokenStore]) -> None:
    row = row_of(make_store([{"prompt": "\x00\x1b\n\t\x7f", "completion": "ok"}]))
    assert [token.text for token in row.tokens[:5]] == ["\u2400", "\u241b", "\u21b5", "\u21e5", "\u2421"]


def test_a_row_that_is_not_there(store: TokenStore) -> None:
    with pytest.raises(PadlessError, match=r"row 99 of a plan of \d+ rows; rows count from 0"):
        show_row(store, store.plan(), 99)


def test_the_row_that_is_chosen_has_segments_of_different_lengths(tmp_path) -> None:
    lengths = [5] * 8 + [7, 2, 1]
    store = TokenStore.write(tmp_path / "ids", [np.ones(n, int) for n in lengths], vocab_size=2)
    made = plan(store.lengths, 10)
    chosen = show_row(store, made)
    assert sorted(length for _, length, _ in chosen.spans) == [1, 2, 7]
