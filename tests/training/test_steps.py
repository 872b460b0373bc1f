"""What rows change for the optimizer, against counting by hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless import plan
from padless.errors import PadlessError
from padless.training.steps import advice, rows_for_samples

LENGTHS = st.lists(st.integers(1, 64), min_size=1, max_size=200)


@given(lengths=LENGTHS, batch=st.integers(1, 64))
@settings(max_examples=60, deadline=None)
def test_both_choices_are_what_counting_gives(lengths: list[int], batch: int) -> None:
    packed = plan(lengths, 64)
    found = rows_for_samples(packed.accounting, batch)
    mean = sum(lengths) / len(lengths)
    assert found.steps == math.ceil(len(lengths) / batch)
    assert found.tokens == pytest.approx(batch * mean)
    assert found.samples_per_row == pytest.approx(len(lengths) / packed.num_rows)
    per_row = sum(lengths) / packed.num_rows
    for choice in (found.same_tokens, found.same_rows):
        assert choice.steps == math.ceil(packed.num_rows / choice.rows)
        assert choice.tokens == pytest.approx(choice.rows * per_row)
        assert choice.growth == pytest.approx(choice.tokens / found.tokens)
    assert found.same_rows.rows == batch


@given(lengths=LENGTHS, batch=st.integers(1, 64))
@settings(max_examples=60, deadline=None)
def test_no_other_number_of_rows_keeps_the_tokens_better(lengths: list[int], batch: int) -> None:
    packed = plan(lengths, 64)
    found = rows_for_samples(packed.accounting, batch)
    per_row = sum(lengths) / packed.num_rows
    misses = {rows: abs(rows * per_row - found.tokens) for rows in range(1, batch + 2)}
    assert misses[found.same_tokens.rows] == pytest.approx(min(misses.values()), abs=1e-6)


def test_one_row_is_the_least_even_where_it_holds_more_than_a_step_did() -> None:
    found = rows_for_samples(plan([8] * 32, 64).accounting, 2)
    assert found.same_tokens.rows == 1
    assert found.same_tokens.growth == 4
    assert found.same_tokens.learning_rate(1e-4) == pytest.approx(2e-4)
    assert found.same_tokens.learning_rate(1e-4, rule="linear") == pytest.approx(4e-4)


def test_the_advice_has_the_plans_own_numbers() -> None:
    assert advice(plan([8] * 32, 64).accounting).startswith("A row holds 8.0 samples (64 tokens).")
    assert "8.0x fewer steps of 8.0x the tokens" in advice(plan([8] * 32, 64).accounting)
    assert advice(plan([64] * 4, 64).accounting).endswith("stay as they were")


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(PadlessError, match="at least one"):
        rows_for_samples(plan([8], 64).accounting, 0)
