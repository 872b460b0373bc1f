"""How many calls a rule takes, and what they look like."""

import importlib.util
import inspect
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

from padless.errors import MissingExtraError
from padless.masks import torch_varlen_kwargs, varlen_calls, xformers_biases
from padless.rows import Rule, collate


def block_sample(*sizes: int) -> dict[str, Any]:
    """A pi0-like sample: blocks of so many tokens."""
    return {"input_ids": [7] * sum(sizes), "blocks": np.repeat(np.arange(len(sizes)), sizes).tolist()}


def test_there_is_at_most_one_call_per_rank(all_rules: Iterable[Any]) -> None:
    for batch, _ in all_rules:
        if batch.rule.visibility is not None and batch.rule.window is not None:
            continue
        calls = varlen_calls(batch)
        classes = 1 if batch.ranks is None else len(set(batch.ranks[batch.ranks >= 0].tolist()))
        assert len(calls) <= classes


def test_prefix_lm_is_one_full_call_and_one_causal_call() -> None:
    rows = [{"input_ids": [7] * n, "prefix_length": p} for n, p in ((9, 4), (5, 0), (7, 7), (1, 0))]
    calls = varlen_calls(collate(rows, rule=Rule(kind="prefix-lm"), align=2))
    assert [call.causal for call in calls] == [False, True]


def test_pi0_takes_three_calls_and_pi05_two() -> None:
    rule = Rule(kind="block-causal")
    pi0 = collate([block_sample(9, 1, 5), block_sample(6, 1, 5)], rule=rule)
    assert len(varlen_calls(pi0)) == 3
    pi05 = collate([block_sample(9, 5), block_sample(6, 5)], rule=rule)
    calls = varlen_calls(pi05)
    assert [call.causal for call in calls] == [False, False]
    assert calls[1].k_index is None, "all keys in their order need no gather"
    assert calls[1].cu_seqlens_k.tolist() == [0, 14, 25]


def test_ranks_that_share_a_line_of_the_table_share_a_call() -> None:
    table = ((True, False, False), (True, True, True), (True, True, True))
    batch = collate([block_sample(3, 2, 2)], rule=Rule(kind="block-causal", visibility=table))
    assert len(varlen_calls(batch)) == 2


def test_padding_in_a_call_is_many_short_sequences() -> None:
    [call] = varlen_calls(collate([[7, 8, 9]], capacity=1000, rule=Rule(kind="bidirectional")))
    assert call.cu_seqlens_q[-1] == 1000
    assert np.diff(call.cu_seqlens_q).max() == call.max_seqlen_q == 128


@pytest.mark.parametrize("rule", [Rule(), Rule(chunk=3), Rule(kind="bidirectional", window=(2, 2))])
def test_a_static_batch_has_calls_of_one_shape(rule: Rule) -> None:
    shapes = set()
    for lengths in ([5], [1, 1, 1, 1], [3, 9, 2], [64], [20, 20, 20]):
        batch = collate([[7] * n for n in lengths], static=(64, 4), rule=rule)
        [call] = varlen_calls(batch)
        assert call.cu_seqlens_q[-1] == 64
        shapes.add((len(call.cu_seqlens_q), call.max_seqlen_q, call.q_index is None))
    assert len(shapes) == 1


def test_calls_of_tensors_are_tensors() -> None:
    batch = collate([block_sample(3, 1, 2)], rule=Rule(kind="block-causal"), capacity=8).torch()
    for call in varlen_calls(batch):
        assert isinstance(call.q_index, torch.Tensor)
        assert call.q_index.dtype == torch.int64
        assert call.cu_seqlens_q.dtype == call.cu_seqlens_k.dtype == torch.int32


def test_flash_attn_gets_its_own_names() -> None:
    [call] = varlen_calls(collate([[1, 2], [3]], rule=Rule(window=(4, None))))
    kwargs = call.flash_kwargs()
    assert kwargs.pop("cu_seqlens_q").tolist() == kwargs.pop("cu_seqlens_k").tolist() == [0, 2, 3]
    assert kwargs == {"max_seqlen_q": 2, "max_seqlen_k": 2, "causal": True, "window_size": (4, 0)}


def test_torch_gets_the_names_of_the_installed_version() -> None:
    """Every argument exists; on a CPU the kernel itself does not."""
    from torch.nn.attention.varlen import varlen_attn

    [kwargs] = torch_varlen_kwargs(collate([[1, 2], [3]]))
    assert set(kwargs) <= set(inspect.signature(varlen_attn).parameters)


def test_without_xformers_its_biases_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="each release fits one torch"):
        xformers_biases(collate([[1, 2]]))


def test_an_older_torch_is_told_causal_by_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention import varlen

    def varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False):
        raise AssertionError

    monkeypatch.setattr(varlen, "varlen_attn", varlen_attn)
    [kwargs] = torch_varlen_kwargs(collate([[1, 2], [3]]))
    assert kwargs["is_causal"] is True
    assert "window_size" not in kwargs
    with pytest.raises(ValueError, match="knows none"):
        torch_varlen_kwargs(collate([[1, 2], [3]], rule=Rule(window=(1, None))))
