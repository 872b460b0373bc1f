"""Every language says exactly what the rule says: 10,000 ragged batches each, read back by interpreters written here.

An interpreter follows the kernel's documentation, not our exporter: it turns the exported arguments into a table of who
sees whom. Real queries must see what the naive reference says. Padding must see no real token.

Mutation check (`test_a_missing_boundary_is_seen`): for every language, removing any one boundary between two segments
from what is exported changes the table, so the comparison above fails.
"""

import functools
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from padless.errors import PadlessError
from padless.masks import (
    additive_mask,
    dense_mask,
    flash_mask,
    flex_mask_mod,
    inverted_mask,
    jax_segment_ids,
    magi_slices,
    megatron_packed_seq_params,
    torch_varlen_kwargs,
    transformer_engine_kwargs,
    varlen_calls,
    xformers_biases,
)
from padless.masks._reference import reference_mask
from padless.rows import Batch, Rule, batch_from_segments

# Interpreters: what a kernel does with what it is given ------------------------------------------------------------


@functools.cache
def band(nq: int, nk: int, left: int, right: int) -> np.ndarray:
    """flash-attn's README: query i sees keys from `i + nk - nq - left` to `i + nk - nq + right`; -1 is no limit."""
    seen = np.zeros((nq, nk), dtype=bool)
    for i in range(nq):
        middle = i + nk - nq
        first = 0 if left < 0 else max(0, middle - left)
        last = nk if right < 0 else min(nk, middle + right + 1)
        seen[i, first : max(last, 0)] = True
    return seen


def read_varlen(slots: int, q_index: Any, k_index: Any, cu_q: Any, cu_k: Any, window: tuple[int, int]) -> np.ndarray:
    table = np.zeros((slots, slots), dtype=bool)
    q_index = np.arange(slots) if q_index is None else q_index
    k_index = np.arange(slots) if k_index is None else k_index
    assert cu_q[-1] == len(q_index)
    assert cu_k[-1] == len(k_index)
    for i in range(len(cu_q) - 1):
        q, k = q_index[cu_q[i] : cu_q[i + 1]], k_index[cu_k[i] : cu_k[i + 1]]
        seen = band(len(q), len(k), *window)
        assert seen.any(axis=1).all(), "a query that sees nothing"
        table[q[:, None], k] |= seen
    return table


def read_calls(calls: Any, batch: Batch) -> np.ndarray:
    table = np.zeros((batch.num_slots, batch.num_slots), dtype=bool)
    asked = np.zeros(batch.num_slots, dtype=int)
    for call in calls:
        window = (call.window[0], 0) if call.causal else call.window
        assert call.window == window, "flash-attn sets right to 0 itself; torch does not"
        assert call.max_seqlen_q >= np.diff(call.cu_seqlens_q).max()
        assert call.max_seqlen_k >= np.diff(call.cu_seqlens_k).max()
        asked[slice(None) if call.q_index is None else call.q_index] += 1
        cu = call.cu_seqlens_q, call.cu_seqlens_k
        table |= read_varlen(batch.num_slots, call.q_index, call.k_index, *cu, window)
    assert asked.max() <= 1, "a query in two calls would need its outputs merged"
    return table


def read_torch_varlen(export: Any, batch: Batch) -> np.ndarray:
    """`varlen_attn`: causal is `window_size=(-1, 0)`; the flash kernel aligns to the bottom right."""
    table = np.zeros((batch.num_slots, batch.num_slots), dtype=bool)
    for call, kwargs in export:
        cu = kwargs["cu_seq_q"].numpy(), kwargs["cu_seq_k"].numpy()
        table |= read_varlen(batch.num_slots, call.q_index, call.k_index, *cu, kwargs["window_size"])
    return table


def read_xformers(export: Any, batch: Batch) -> np.ndarray:
    table = np.zeros((batch.num_slots, batch.num_slots), dtype=bool)
    for call, bias in export:
        q = np.arange(batch.num_slots) if call.q_index is None else call.q_index
        k = np.arange(batch.num_slots) if call.k_index is None else call.k_index
        table[q[:, None], k] |= np.asarray(bias.materialize((len(q), len(k)))) == 0
    return table


def read_thd(kwargs: dict[str, Any], batch: Batch) -> np.ndarray:
    """Transformer Engine: sequence i is the first `cu[i + 1] - cu[i]` slots from `cu_padded[i]`, the rest is nobody."""
    table = np.zeros((batch.num_slots, batch.num_slots), dtype=bool)
    logical, padded = kwargs["cu_seqlens_q"].numpy(), kwargs["cu_seqlens_q_padded"].numpy()
    assert padded[-1] == batch.num_slots
    assert (kwargs["cu_seqlens_q"] is kwargs["cu_seqlens_q_padded"]) == (not kwargs["pad_between_seqs"])
    left, right = kwargs["window_size"]
    causal = kwargs["attn_mask_type"] == "padding_causal"
    for start, n in zip(padded[:-1], np.diff(logical), strict=True):
        table[start : start + n, start : start + n] = band(n, n, left, 0 if causal else right)
    return table


def read_flash_mask(export: Any, batch: Batch) -> np.ndarray:
    """Paddle: for each key, rows from value 0 on are masked; with causal rows before it, else rows before value 1."""
    table = np.ones((batch.num_slots, batch.num_slots), dtype=bool)
    for key, values in enumerate(export.startend_row_indices[0, 0]):
        table[values[0] :, key] = False
        table[: key if export.causal else values[1], key] = False
    return table


def read_slices(export: Any, batch: Batch) -> np.ndarray:
    """MagiAttention: causal is aligned to the bottom right, inverse causal to the top left; slices add up."""
    table = np.zeros((batch.num_slots, batch.num_slots), dtype=int)
    for (q0, q1), (k0, k1), kind in zip(*export, strict=True):
        for i in range(q1 - q0):
            first = i if kind in (2, 3) else 0
            last = i + (k1 - k0) - (q1 - q0) if kind in (1, 3) else k1 - k0 - 1
            table[q0 + i, k0 + first : k0 + last + 1] += 1
    assert table.max(initial=0) <= 1, "a pair that two slices hold is counted twice in the softmax"
    return table > 0


def read_jax(export: Any, batch: Batch) -> np.ndarray:
    """Equal ids see each other; causality and windows are the model's own, over the index in the row."""
    table = np.zeros((batch.num_slots, batch.num_slots), dtype=bool)
    rows, width = export.segment_ids.shape
    left, right = batch.rule.window or (None, None)
    limits = (-1 if left is None else left, 0 if batch.rule.kind == "causal" else -1 if right is None else right)
    for r in range(rows):
        ids, at = export.segment_ids[r], slice(r * width, (r + 1) * width)
        table[at, at] = (ids[:, None] == ids) & band(width, width, *limits)
    return table


def read_flex(mask_mod: Any, batch: Batch) -> np.ndarray:
    slots = torch.arange(batch.num_slots)
    return mask_mod(0, 0, slots[:, None], slots[None, :]).numpy()


# The languages -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Language:
    """How to say it, how a kernel hears it, what it can say, and how to take boundary i out of what was said."""

    export: Callable[[Batch], Any]
    read: Callable[[Any, Batch], np.ndarray]
    says: Callable[[Rule], bool]
    without: Callable[[Any, int], Any] | None = None


def everything(_rule: Rule) -> bool:
    return True


def no_window_on_a_table(rule: Rule) -> bool:
    return rule.visibility is None or rule.window is None


def drop(offsets: Any, i: int) -> Any:
    return np.delete(np.asarray(offsets), i + 1)


def thd_without(kwargs: dict[str, Any], i: int) -> dict[str, Any]:
    # Without padding between segments both fields are one tensor.
    offsets = torch.from_numpy(drop(kwargs["cu_seqlens_q"], i))
    return {**kwargs, "cu_seqlens_q": offsets, "cu_seqlens_q_padded": offsets}


LANGUAGES = {
    "dense": Language(dense_mask, lambda mask, _: mask, everything),
    "additive": Language(additive_mask, lambda mask, _: mask == 0, everything),
    "inverted": Language(inverted_mask, lambda mask, _: ~mask, everything),
    "calls": Language(
        varlen_calls,
        read_calls,
        no_window_on_a_table,
        lambda calls, i: [
            replace(
                call,
                cu_seqlens_q=drop(call.cu_seqlens_q, i),
                cu_seqlens_k=drop(call.cu_seqlens_k, i),
                max_seqlen_q=99,
                max_seqlen_k=99,
            )
            for call in calls
        ],
    ),
    "torch_varlen": Language(
        lambda batch: list(zip(varlen_calls(batch), torch_varlen_kwargs(batch), strict=True)),
        read_torch_varlen,
        no_window_on_a_table,
        lambda export, i: [
            (call, kwargs | {name: torch.from_numpy(drop(kwargs[name], i)) for name in ("cu_seq_q", "cu_seq_k")})
            for call, kwargs in export
        ],
    ),
    "xformers": Language(
        lambda batch: list(zip(varlen_calls(batch), xformers_biases(batch), strict=True)),
        read_xformers,
        lambda rule: rule.window is None or rule.kind == "causal",
    ),
    "thd": Language(
        transformer_engine_kwargs,
        read_thd,
        lambda rule: not rule.has_ranks and rule.chunk is None,
        thd_without,
    ),
    "flash_mask": Language(flash_mask, read_flash_mask, lambda rule: rule.visibility is None),
    "slices": Language(magi_slices, read_slices, everything),
    "jax": Language(
        jax_segment_ids,
        read_jax,
        lambda rule: not rule.has_ranks,
        lambda export, i: export._replace(segment_ids=export.segment_ids - (export.segment_ids > i + 1)),
    ),
    "flex": Language(flex_mask_mod, read_flex, everything),
}


@pytest.fixture(autouse=True, scope="module")
def xformers_or_its_stand_in():
    """The real biases where xformers is installed; elsewhere classes that follow its `attn_bias.py` line by line."""
    if importlib.util.find_spec("xformers") is not None:
        yield
        return
    names = ["xformers", "xformers.ops", "xformers.ops.fmha", "xformers.ops.fmha.attn_bias"]
    for name in names:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    sys.modules[names[-1]].BlockDiagonalMask = BlockDiagonalMask  # pyright: ignore[reportAttributeAccessIssue]
    yield
    for name in names:
        del sys.modules[name]


@dataclass(frozen=True)
class BlockDiagonalMask:
    """xformers 0.0.3x: queries and keys in the same number of blocks; block i sees block i, as `kind` says."""

    q_lengths: list[int]
    k_lengths: list[int]
    kind: str = "full"
    window_size: int | None = None

    @classmethod
    def from_seqlens(cls, q_seqlen: list[int], kv_seqlen: list[int] | None = None) -> "BlockDiagonalMask":
        return cls(q_seqlen, q_seqlen if kv_seqlen is None else kv_seqlen)

    def make_causal_from_bottomright(self) -> "BlockDiagonalMask":
        assert all(k >= q for q, k in zip(self.q_lengths, self.k_lengths, strict=True))
        return replace(self, kind="bottom-right")

    def make_local_attention_from_bottomright(self, window_size: int) -> "BlockDiagonalMask":
        assert window_size > 0
        return replace(self.make_causal_from_bottomright(), window_size=window_size)

    def materialize(self, shape: tuple[int, int]) -> np.ndarray:
        assert shape == (sum(self.q_lengths), sum(self.k_lengths))
        out = np.full(shape, -np.inf)
        q = k = 0
        for nq, nk in zip(self.q_lengths, self.k_lengths, strict=True):
            block = np.ones((nq, nk))
            if self.kind == "bottom-right":
                block = np.tril(block, nk - nq)
            if self.window_size is not None:
                block = np.triu(block, nk - nq - self.window_size + 1)
            out[q : q + nq, k : k + nk][block == 1] = 0
            q, k = q + nq, k + nk
        return out


# What must hold ----------------------------------------------------------------------------------------------------


def rectangular(batch: Batch) -> bool:
    return batch.num_slots % batch.num_rows == 0 and bool(
        (batch.starts[batch.row_offsets[:-1]] == np.arange(batch.num_rows) * (batch.num_slots // batch.num_rows)).all()
    )


def agrees(table: np.ndarray, batch: Batch, mask: np.ndarray) -> bool:
    """Real queries see exactly what the rule says, and padding sees no real token."""
    real = batch.segment_ids > 0
    return bool((table[real] == mask[real]).all()) and not table[~real][:, real].any()


@pytest.mark.slow
@pytest.mark.parametrize("name", LANGUAGES)
def test_it_says_what_the_rule_says(name: str, all_rules: list[Any], plain_rules: list[Any]) -> None:
    language = LANGUAGES[name]
    said = 0
    for batch, mask in [*all_rules, *plain_rules]:
        if not language.says(batch.rule) or (name == "jax" and not rectangular(batch)):
            continue
        table = language.read(language.export(batch), batch)
        assert agrees(table, batch, mask), (
            f"{name}: {batch!r}\n{table.astype(int)}\nbut the rule is\n{mask.astype(int)}"
        )
        said += 1
    assert said >= 10_000


@pytest.mark.parametrize("name", LANGUAGES)
def test_what_it_cannot_say_is_refused_with_what_can(name: str, all_rules: list[Any]) -> None:
    language = LANGUAGES[name]
    refused = 0
    for batch, _ in all_rules[:600]:
        if not language.says(batch.rule) and (name != "jax" or rectangular(batch)):
            # Of non-causal windows xformers only lacks those that its one causal call would not have.
            if name == "xformers" and all(call.causal for call in varlen_calls(batch)):
                continue
            with pytest.raises(PadlessError, match=r"; (use|give JAX)"):
                language.export(batch)
            refused += 1
    assert (refused > 0) == (language.says not in (everything, no_window_on_a_table))


def test_a_window_on_a_visibility_table_is_no_varlen_call() -> None:
    rule = Rule(kind="block-causal", visibility=((True, False), (True, True)), window=(1, None))
    batch = batch_from_segments(np.arange(4), None, np.array([4]), rule=rule, blocks=np.array([0, 1, 0, 1]))
    for export in (varlen_calls, torch_varlen_kwargs, xformers_biases):
        with pytest.raises(PadlessError, match=r"cannot be said in varlen calls.*; use"):
            export(batch)
    for name in ("dense", "flex", "slices"):
        assert agrees(LANGUAGES[name].read(LANGUAGES[name].export(batch), batch), batch, reference_mask(batch))


def increasing(lengths: np.ndarray, kind: Any) -> Batch:
    """Ranks that grow over the whole batch, so that segments can be joined and the order still stands."""
    blocks = np.arange(int(lengths.sum())) // 2 * 2 if kind == "block-causal" else None
    total = int(lengths.sum())
    return batch_from_segments(np.arange(total), None, lengths, capacity=total + 2, rule=Rule(kind=kind), blocks=blocks)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name, language in LANGUAGES.items()
        for kind in ("causal", "bidirectional", "block-causal")
        if language.says(Rule(kind=kind))
    ],
)
def test_a_missing_boundary_is_seen(name: str, kind: str) -> None:
    """Taken out of the export itself where it holds boundaries one by one, else out of the batch before exporting."""
    language = LANGUAGES[name]
    rng = np.random.default_rng(5)
    for _ in range(8):
        lengths = rng.integers(1, 6, rng.integers(2, 6))
        batch = increasing(lengths, kind)
        mask = reference_mask(batch)
        assert agrees(language.read(language.export(batch), batch), batch, mask)
        for i in range(len(lengths) - 1):
            if language.without is not None and kind != "block-causal":
                export = language.without(language.export(batch), i)
            else:
                joined = np.delete(lengths, i + 1)
                joined[i] += lengths[i + 1]
                export = language.export(increasing(joined, kind))
            assert not agrees(language.read(export, batch), batch, mask), f"boundary {i} of {lengths} was not missed"


def test_megatron_params_hold_the_offsets_that_were_read_back(plain_rules: list[Any]) -> None:
    for batch, _ in plain_rules[:50]:
        params, kwargs = megatron_packed_seq_params(batch), transformer_engine_kwargs(batch)
        for field in fields(params):
            value = getattr(params, field.name)
            if field.name in kwargs and isinstance(value, torch.Tensor):
                assert torch.equal(value, kwargs[field.name])
            elif field.name in kwargs:
                assert value == kwargs[field.name]
        assert params.qkv_format == "thd"
        assert params.max_seqlen_q == np.diff(params.cu_seqlens_q_padded).max()
