"""The cost model of pi0-type policies: the published case, line by line, and counts against a loop over matrices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from padless.errors import PadlessError
from padless.measure.vla_cost import PI05_COST, REPORTED_SAVING, Stack, case_study

# Change, slots, TFLOP, saving in percent: openpi's pi05_libero with two real cameras, forward, per sample.
LIBERO = [
    ("as shipped", 978, 4.64, 0.0),
    ("prompts of 60 padded to the batch", 838, 4.05, 12.8),
    ("prompts of 20 padded to the batch", 798, 3.88, 16.4),
    ("masked slot dropped", 722, 3.34, 28.0),
    ("both, prompts of 60", 582, 2.76, 40.5),
    ("both, prompts of 20", 542, 2.60, 44.1),
]


@pytest.mark.parametrize(("line", "expected"), list(enumerate(LIBERO)))
def test_the_case_study_line_by_line(line: int, expected: tuple[str, int, float, float]) -> None:
    case = case_study()[line]
    assert (case.change, case.tokens) == expected[:2]
    assert case.flops.total / 1e12 == pytest.approx(expected[2], abs=0.01)
    assert 100 * case.saving == pytest.approx(expected[3], abs=0.05)


def test_the_reported_saving_is_what_both_lossless_changes_give() -> None:
    """4.71 s to 2.85 s per step, against 40.5 %: the reported gain needs no view that shows anything."""
    assert pytest.approx(1 - 2.85 / 4.71, abs=1e-3) == REPORTED_SAVING == 0.3956
    assert case_study()[4].saving == pytest.approx(REPORTED_SAVING, abs=0.01)
    assert case_study(suffix=50)[4].saving == pytest.approx(0.403, abs=0.001)


def test_attention_is_three_percent_and_where_the_rest_is() -> None:
    flops = case_study()[0].flops
    assert flops.attention / flops.total == pytest.approx(0.030, abs=0.001)
    assert flops.tower / 1e12 == pytest.approx(0.66, abs=0.01)
    assert flops.linear / 1e12 == pytest.approx(3.84, abs=0.01)
    # So the 44 % that half of the visual tokens would save of attention is a saving of about one percent.
    assert 0.4375 * flops.attention / flops.total < 0.015


def test_pi0_with_one_camera() -> None:
    cases = case_study(real_views=1, prompt_slots=48, prompts=(20,), suffix=51)
    assert [cases[i].tokens for i in (0, 3)] == [867, 327]
    assert cases[3].saving == pytest.approx(0.663, abs=0.001)


def test_transformers_encodes_slots_that_take_no_tokens() -> None:
    args = {"views": 2, "prompt": 48, "suffix": 51}
    encoded, real = PI05_COST.flops(**args, encoded=3), PI05_COST.flops(**args)
    assert encoded.tower == pytest.approx(1.5 * real.tower)
    assert encoded.linear == real.linear


@given(
    layers=st.integers(1, 4),
    width=st.integers(1, 64),
    hidden=st.integers(1, 64),
    kv=st.integers(1, 3),
    group=st.integers(1, 3),
    size=st.integers(1, 16),
    gated=st.booleans(),
)
def test_flops_of_a_token_are_those_of_its_matrices(layers, width, hidden, kv, group, size, gated) -> None:
    stack = Stack(layers=layers, width=width, hidden=hidden, heads=kv * group, kv_heads=kv, head_size=size, gated=gated)
    matrices = [(width, kv * group * size), (width, kv * size), (width, kv * size), (kv * group * size, width)]
    matrices += [(width, hidden)] * (1 + gated) + [(hidden, width)]
    assert stack.per_token == 2 * layers * sum(a * b for a, b in matrices)


def test_without_a_mask_attention_scores_what_blocks_may_see() -> None:
    prefix, suffix = 2 * 256 + 60, 10
    ranks = np.array([0] * prefix + [1] * suffix)
    pairs = int((ranks[None] <= ranks[:, None]).sum())
    args = {"views": 2, "prompt": 60, "suffix": suffix}
    assert PI05_COST.flops(**args, mask=False).attention == 4 * 18 * 8 * 256 * pairs
    assert PI05_COST.flops(**args).attention == 4 * 18 * 8 * 256 * (prefix + suffix) ** 2


def test_impossible_cases_are_refused() -> None:
    with pytest.raises(PadlessError, match="4 real views of 3"):
        case_study(real_views=4)
    with pytest.raises(PadlessError, match="at least 1"):
        Stack(layers=0, width=1, hidden=1, heads=1, kv_heads=1, head_size=1, gated=False)
