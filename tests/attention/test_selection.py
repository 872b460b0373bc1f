"""Which backend is chosen, what is said about it, and how the cost model is kept."""

import json
import logging

import numpy as np
import pytest
import torch

from padless.attention import choose, cost, varlen_attention
from padless.attention.backends import BACKENDS
from padless.attention.capability import Capability
from padless.attention.groups import PORTION, plan
from padless.attention.pieces import cut
from padless.attention.places import Picked, Run
from padless.attention.segments import Segments
from padless.errors import PadlessError


def qkv(tokens, size=8, dtype=torch.float32):
    return torch.randn(3, tokens, 2, size, dtype=dtype, requires_grad=True).unbind()


def test_ragged_rows_go_segment_by_segment_and_equal_ones_to_the_fixed_path():
    ragged = choose(*qkv(6000), cu_seqlens=[0, 100, 600, 6000])
    equal = choose(*qkv(600), cu_seqlens=[0, 200, 400, 600])
    assert (ragged.backend, ragged.path) == ("segmented", "varlen")
    assert (equal.backend, equal.path) == ("segmented", "fixed")
    assert ragged.microseconds["segmented"] < ragged.microseconds["dense"]
    assert ragged.padded_microseconds > ragged.microseconds["segmented"]
    assert "no CUDA device" in " ".join(ragged.refusals["torch-varlen"]) or torch.cuda.is_available()


def test_equal_neighbours_are_one_kernel_call_on_views():
    segments = Segments.of(np.arange(0, 8193, 128))
    made = plan(cut(segments, None, 0), (8192, 8192), 8.0, cost.Cost(), torch.device("cpu"))
    assert all(isinstance(g.q, Run) for g in made.groups)
    assert {g.q.count for g in made.groups} == {PORTION // (8 * 128)}  # as many as stay in the cache together
    assert made.covers_q


def test_tiny_segments_are_few_calls_and_long_ones_are_not_copied():
    lengths = [*np.random.default_rng(0).integers(10, 20, 500), 900, 700]
    segments = Segments.of(np.concatenate([[0], np.cumsum(lengths)]))
    tokens = segments.q_slots
    made = plan(cut(segments, None, 0), (tokens, tokens), 8.0, cost.Cost(), torch.device("cpu"))
    copied = [g for g in made.groups if isinstance(g.q, Picked)]
    assert len(made.groups) - len(copied) == 2
    assert len(copied) <= 10 + sum(lengths[:500]) / (PORTION / 8 - 20)
    assert sum(g.q.count for g in copied) == 500


def test_the_choice_is_logged_once(caplog):
    from padless.attention.select import _log_once

    _log_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="padless.attention"):
        for _ in range(3):
            varlen_attention(*qkv(9), cu_seqlens=[0, 4, 9])
    assert [record.getMessage()[:37] for record in caplog.records] == ["attention by segmented (varlen): segme"[:37]]


def test_when_nothing_can_every_backend_says_what_it_lacks():
    q, k, v = qkv(9)
    with pytest.raises(PadlessError) as error:
        varlen_attention(q, k, v, cu_seqlens=[0, 9], dropout_p=0.5, backend="segmented")
    assert str(error.value) == "no attention backend can do this:\n  segmented: dropout"


def test_a_named_backend_that_is_not_here_says_why():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(
        PadlessError, match=r"flash-attn-3: (flash-attn 3 is not installed|no CUDA device).*runs on cuda"
    ):
        varlen_attention(*qkv(9), cu_seqlens=[0, 9], backend="flash-attn-3")


def test_every_requirement_has_its_own_words():
    from padless.attention.problem import Problem

    nothing = Capability(
        devices=("cuda",),
        dtypes=(torch.float16,),
        max_head_size=4,
        head_multiple=16,
        own_value_size=False,
        window=False,
        backward=("cuda",),
        deterministic=False,
        lse=False,
        more_queries=False,
    )
    q, k, v = torch.randn(5, 2, 8, requires_grad=True), torch.randn(3, 2, 8), torch.randn(3, 2, 6)
    p = Problem(
        q=q,
        k=k,
        v=v,
        segments=Segments.of([0, 5], [0, 3]),
        left=2,
        right=0,
        scale=1.0,
        softcap=1.0,
        sinks=torch.zeros(2),
        dropout_p=0.1,
        deterministic=True,
        return_lse=True,
    )
    assert len(nothing.refusals(p)) == len(set(nothing.refusals(p))) == 13


def test_a_calibration_changes_the_choice(default_costs):
    before = choose(*qkv(600), cu_seqlens=[0, 100, 350, 600]).backend
    slow = cost.Cost(launch_us=1e9)
    cost.save("cpu", {"segmented": slow}, default_costs)
    assert before == "segmented"
    assert choose(*qkv(600), cu_seqlens=[0, 100, 350, 600]).backend == "dense"
    assert cost.machine("cpu")["segmented"] == slow
    assert cost.machine("cpu")["dense"] == cost.DEFAULTS["cpu"]["dense"]


@pytest.mark.parametrize("text", ["{", json.dumps({"cpu": {"segmented": {"speed": 1}}})])
def test_a_damaged_calibration_is_an_error(default_costs, text):
    default_costs.write_text(text)
    cost.machine.cache_clear()
    with pytest.raises(PadlessError, match="padless bench attention --calibrate"):
        choose(*qkv(9), cu_seqlens=[0, 9])


def test_costs_are_numbers():
    with pytest.raises(PadlessError, match="launch_us is -1"):
        cost.Cost(launch_us=-1)


def test_every_backend_has_a_cost_on_cuda():
    assert set(cost.DEFAULTS["cuda"]) == set(BACKENDS)
