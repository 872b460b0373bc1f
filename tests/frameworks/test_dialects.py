"""Every dialect says the same segments and the same targets, and each boundary in it is needed.

A checker per dialect reads its output as that framework does, with the framework's own functions where they run on a
CPU. The same checkers must fail when any one boundary is taken out of any one field: `MUTATIONS` lists them.
"""

import dataclasses
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from padless import Batch, collate
from padless.frameworks.dialects import DIALECTS, dialect

Sample = tuple[list[int], list[bool]]


@dataclasses.dataclass(frozen=True)
class Case:
    """Rows of samples, how they were collated, and where each sample must lie: `(start, ids, targets)`."""

    rows: list[list[Sample]]
    align: int
    capacity: int | None

    @property
    def batch(self) -> Batch:
        rows = [[{"input_ids": ids, "targets": targets} for ids, targets in row] for row in self.rows]
        return collate(rows, align=self.align, capacity=self.capacity)

    @property
    def extents(self) -> list[tuple[int, list[int], list[bool]]]:
        found, end = [], 0
        for number, row in enumerate(self.rows):
            if self.capacity is not None:
                end = number * self.capacity
            for ids, targets in row:
                found.append((end, ids, targets))
                end += -(-len(ids) // self.align) * self.align
        return found

    @property
    def slots(self) -> int:
        if self.capacity is not None:
            return self.capacity * len(self.rows)
        start, ids, _ = self.extents[-1]
        return start + -(-len(ids) // self.align) * self.align


SAMPLE = st.integers(1, 7).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(1, 99), min_size=n, max_size=n),
        st.lists(st.booleans(), min_size=n - 1, max_size=n - 1).map(lambda rest: [False, *rest]),
    )
)
ROWS = st.lists(st.lists(SAMPLE, min_size=1, max_size=4), min_size=1, max_size=3)


def cases(*, align: bool, capacity: bool | None) -> st.SearchStrategy[Case]:
    aligns = st.sampled_from([1, 2, 4]) if align else st.just(1)
    capacities = st.sampled_from([32, 40]) if capacity else st.just(None)
    if capacity is None:
        capacities = st.sampled_from([None, 32])
    return st.builds(Case, ROWS, aligns, capacities)


# What each framework reads -------------------------------------------------------------------------------------------


def check_cuts(cuts: list[int], case: Case) -> None:
    """Pieces cover all slots; each segment is one of them; every other piece is padding."""
    spans = list(itertools.pairwise(cuts))
    assert cuts[0] == 0
    assert cuts[-1] == case.slots
    real = {(start, start + len(ids)) for start, ids, _ in case.extents}
    assert real <= set(spans)
    for start, end in set(spans) - real:
        assert end - start > 0
        assert all(end <= a or b <= start for a, b in real)


def cuts_of_ids(ids: torch.Tensor) -> list[int]:
    return [0, *((ids[1:] != ids[:-1]).nonzero().flatten() + 1).tolist(), len(ids)]


def check_unshifted(ids: list[int], labels: list[int], case: Case) -> None:
    expected = [-100] * case.slots
    for start, tokens, targets in case.extents:
        assert ids[start : start + len(tokens)] == tokens
        for i, wanted in enumerate(targets):
            expected[start + i] = tokens[i] if wanted else -100
    assert labels == expected


def check_shifted(labels: list[int], mask: list[float], case: Case, *, ignored: int | None) -> None:
    expected: dict[int, int] = {
        start + i - 1: tokens[i]
        for start, tokens, targets in case.extents
        for i, wanted in enumerate(targets)
        if wanted
    }
    assert [slot for slot in range(case.slots) if mask[slot]] == sorted(expected)
    assert all(labels[slot] == token for slot, token in expected.items())
    if ignored is not None:
        assert all(labels[slot] == ignored for slot in range(case.slots) if slot not in expected)


def check_transformers(kwargs: dict[str, Any], case: Case) -> None:
    from transformers.masking_utils import find_packed_sequence_indices
    from transformers.modeling_flash_attention_utils import prepare_fa_kwargs_from_position_ids

    assert "attention_mask" not in kwargs, "a mask, even of ones, would win over the boundaries"
    for side in ("q", "k"):
        cu_seqlens = kwargs[f"cu_seq_lens_{side}"]
        assert cu_seqlens.dtype == torch.int32
        check_cuts(cu_seqlens.tolist(), case)
        assert kwargs[f"max_length_{side}"] >= int(cu_seqlens.diff().max())
        assert type(kwargs[f"max_length_{side}"]) is int
    assert kwargs["seq_idx"].dtype == torch.int32
    check_cuts(cuts_of_ids(kwargs["seq_idx"][0]), case)
    seen = find_packed_sequence_indices(kwargs["position_ids"])
    check_cuts([0, case.slots] if seen is None else cuts_of_ids(seen[0]), case)
    check_cuts(prepare_fa_kwargs_from_position_ids(kwargs["position_ids"])[0][0].tolist(), case)
    check_unshifted(kwargs["input_ids"][0].tolist(), kwargs["labels"][0].tolist(), case)


def check_trl(table: pa.Table, case: Case) -> None:
    """Through TRL's own collator, and then as Transformers reads it."""
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    assert table.column_names == ["input_ids", "labels", "seq_lengths"]
    collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    check_transformers(collator(table.to_pylist()), case)


def check_megatron(packed: dict[str, Any], case: Case) -> None:
    from megatron.core.models.common.embeddings.rope_utils import _apply_rotary_pos_emb_thd

    params = packed["packed_seq_params"]
    assert params.qkv_format == "thd"
    assert params.max_seqlen_q == params.max_seqlen_kv
    for side in ("q", "kv"):
        logical, padded = getattr(params, f"cu_seqlens_{side}"), getattr(params, f"cu_seqlens_{side}_padded")
        assert logical.dtype == padded.dtype == torch.int32
        assert len(logical) == len(padded)
        assert (logical is padded) == bool(torch.equal(logical, padded)), "Transformer Engine compares with `is`"
        assert params.max_seqlen_q == int(padded.diff().max())
        assert (padded % case.align == 0).all()
        aligned = dataclasses.replace(
            case, rows=[[_aligned(sample, case.align) for sample in row] for row in case.rows]
        )
        check_cuts(padded.tolist(), aligned)
        real = dict(zip(padded.tolist(), logical.diff().tolist(), strict=False))
        assert all(real[start] == len(ids) for start, ids, _ in case.extents)
    # Positions as Megatron's RoPE takes them from the boundaries: one angle per position, read back from the rotation.
    table = torch.arange(params.max_seqlen_q, dtype=torch.float64)[:, None, None, None].expand(-1, 1, 1, 2) / 100
    ones = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(case.slots, 1, 2)
    group = SimpleNamespace(size=lambda: 1, rank=lambda: 0)
    turned = _apply_rotary_pos_emb_thd(ones, params.cu_seqlens_q_padded, table, cp_group=group)
    positions = (torch.atan2(turned[:, 0, 1], turned[:, 0, 0]) * 100).round().long().tolist()
    for start, ids, _ in case.extents:
        assert positions[start : start + len(ids)] == list(range(len(ids)))
        assert packed["position_ids"][0, start : start + len(ids)].tolist() == list(range(len(ids)))
        assert packed["tokens"][0, start : start + len(ids)].tolist() == ids
    check_shifted(packed["labels"][0].tolist(), packed["loss_mask"][0].tolist(), case, ignored=-100)


def _aligned(sample: Sample, align: int) -> Sample:
    """A sample as long as the extent it takes."""
    room = -(-len(sample[0]) // align) * align - len(sample[0])
    return sample[0] + [0] * room, sample[1] + [False] * room


def check_nemo(table: pa.Table, case: Case) -> None:
    """As Megatron-Bridge's reader has it: ids[b : e - 1], ids[b + 1 : e], loss_mask[b : e - 1]."""
    kept_rows = [kept for row in case.rows if (kept := [sample for sample in row if len(sample[0]) > 1])]
    found = table.to_pylist()
    assert len(found) == len(kept_rows)
    for line, kept in zip(found, kept_rows, strict=True):
        ids, mask, starts = line["input_ids"], line["loss_mask"], line["seq_start_id"]
        assert len(ids) == len(mask)
        assert starts[0] == 0
        spans = list(zip(starts, [*starts[1:], len(ids)], strict=True))
        assert [(ids[b : e - 1], ids[b + 1 : e], mask[b : e - 1]) for b, e in spans] == [
            (tokens[:-1], tokens[1:], [int(wanted) for wanted in targets[1:]]) for tokens, targets in kept
        ]
        assert all(mask[e - 1] == 0 for _, e in spans), "never read there, and never a target"


def check_jax(rows: dict[str, Any], case: Case) -> None:
    """Segment ids through the reference attention of jax's own flash kernel; targets as MaxText weighs them."""
    from jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds, mha_reference

    assert all(array.dtype == np.int32 and array.shape == rows["inputs"].shape for array in rows.values())
    ids = rows["inputs_segmentation"]
    count, width = ids.shape
    assert width == case.capacity
    uniform = np.zeros((count, 1, width, 4), np.float32)  # all scores equal: outputs are means over what is visible
    values = np.broadcast_to(np.arange(width, dtype=np.float32)[None, None, :, None], uniform.shape)
    means = np.asarray(mha_reference(uniform, uniform, values, None, SegmentIds(ids, ids)))[:, 0, :, 0].reshape(-1)
    for start, tokens, _ in case.extents:
        own = range(start, start + len(tokens))
        expected = np.mean([slot % width for slot in own])
        np.testing.assert_allclose(means[start : start + len(tokens)], expected, rtol=1e-6)
        assert rows["inputs"].reshape(-1)[own].tolist() == tokens
        for name in ("inputs_position", "targets_position"):
            assert rows[name].reshape(-1)[own].tolist() == list(range(len(tokens)))
    flat_ids = ids.reshape(-1)
    real = {slot for start, tokens, _ in case.extents for slot in range(start, start + len(tokens))}
    assert all((flat_ids[slot] == 0) == (slot not in real) for slot in range(case.slots))
    weights = (rows["targets_segmentation"] != 0).reshape(-1).tolist()
    check_shifted(rows["targets"].reshape(-1).tolist(), weights, case, ignored=None)


def check_plain(fields: dict[str, Any], case: Case) -> None:
    ids = fields["segment_ids"].tolist()
    expected_ids = [0] * case.slots
    for number, (start, tokens, _) in enumerate(case.extents, 1):
        expected_ids[start : start + len(tokens)] = [number] * len(tokens)
        assert fields["position_ids"][start : start + len(tokens)].tolist() == list(range(len(tokens)))
    assert ids == expected_ids
    lengths = [len(tokens) for _, tokens, _ in case.extents]
    assert fields["cu_seqlens"].tolist() == np.cumsum([0, *lengths]).tolist()
    assert fields["cu_seqlens_padded"].tolist()[:-1] == [start for start, _, _ in case.extents]
    assert fields["max_seqlen"] == max(lengths)
    assert fields["num_targets"] == sum(sum(targets) for _, _, targets in case.extents)
    check_unshifted(fields["input_ids"].tolist(), fields["labels"].tolist(), case)


CHECKS: dict[str, tuple[Callable[[Any, Case], None], st.SearchStrategy[Case]]] = {
    "plain": (check_plain, cases(align=True, capacity=None)),
    "transformers": (check_transformers, cases(align=True, capacity=None)),
    "trl": (check_trl, cases(align=False, capacity=False)),
    "megatron": (check_megatron, cases(align=True, capacity=None)),
    "nemo": (check_nemo, cases(align=False, capacity=False)),
    "jax": (check_jax, cases(align=True, capacity=True)),
}


def test_every_dialect_is_checked() -> None:
    assert CHECKS.keys() == DIALECTS.keys() == {name for name, _ in MUTATIONS}


@pytest.mark.interop
@pytest.mark.parametrize("name", CHECKS)
def test_a_dialect_says_every_segment_and_every_target(name: str) -> None:
    check, strategy = CHECKS[name]

    @given(strategy)
    @settings(deadline=None, max_examples=25 if name == "jax" else 60)
    def run(case: Case) -> None:
        check(dialect(name)(case.batch), case)

    run()


# One boundary less ---------------------------------------------------------------------------------------------------

ROW = [([7, 8, 9], [False, True, True]), ([4, 5], [False, True]), ([3, 2, 6, 1], [False, True, True, True])]
SIMPLE = Case([ROW], 1, None)
RECTANGLE = Case([ROW], 1, 12)
SEGMENTS = [(0, 3), (3, 5), (5, 9)]
BOUNDARIES = [1, 2]  # in front of segments 1 and 2


def cut_out(offsets: Any, k: int) -> Any:
    """Offsets or starts without entry k."""
    return offsets[[i for i in range(len(offsets)) if i != k]]


def merged_ids(ids: Any, k: int) -> Any:
    """Per-token ids where segment k goes on with the id of the segment before."""
    out = ids.clone() if isinstance(ids, torch.Tensor) else ids.copy()
    start, end = SEGMENTS[k]
    out[..., start:end] = out[..., start - 1]
    return out


def counting_on(positions: Any, k: int) -> Any:
    """Positions that go on counting at segment k."""
    out = positions.clone() if isinstance(positions, torch.Tensor) else positions.copy()
    start, end = SEGMENTS[k]
    for slot in range(start, end):
        out[..., slot] = out[..., slot - 1] + 1
    return out


def first_is_target(labels: Any, k: int) -> Any:
    """Unshifted labels where the first token of segment k is a target of the segment before."""
    out = labels.clone() if isinstance(labels, torch.Tensor) else labels.copy()
    out[..., SEGMENTS[k][0]] = ROW[k][0][0]
    return out


def last_predicts(shifted: Any, k: int) -> Any:
    """Shifted labels or masks where the last token before segment k predicts its first."""
    out = shifted.clone() if isinstance(shifted, torch.Tensor) else shifted.copy()
    out[..., SEGMENTS[k][0] - 1] = ROW[k][0][0]
    return out


def in_column(change: Callable[[Any, int], Any], name: str) -> Callable[[pa.Table, int], pa.Table]:
    """The same change in a list column of a table of one row."""

    def apply(table: pa.Table, k: int) -> pa.Table:
        changed = change(np.array(table.column(name).to_pylist()[0]), k).tolist()
        at = table.column_names.index(name)
        return table.set_column(at, name, pa.array([changed]))

    return apply


def merged_lengths(lengths: Any, k: int) -> Any:
    return np.array([*lengths[: k - 1], lengths[k - 1] + lengths[k], *lengths[k + 1 :]])


def in_key(change: Callable[[Any, int], Any], name: str) -> Callable[[dict, int], dict]:
    return lambda fields, k: fields | {name: change(fields[name], k)}


def in_params(change: Callable[[Any, int], Any], *names: str) -> Callable[[dict, int], dict]:
    def apply(packed: dict, k: int) -> dict:
        params = packed["packed_seq_params"]
        changed = {name: change(getattr(params, name), k) for name in names}
        return packed | {"packed_seq_params": dataclasses.replace(params, **changed)}

    return apply


MUTATIONS: dict[tuple[str, str], Callable[[Any, int], Any]] = {
    ("plain", "segment_ids"): in_key(merged_ids, "segment_ids"),
    ("plain", "position_ids"): in_key(counting_on, "position_ids"),
    ("plain", "cu_seqlens"): in_key(cut_out, "cu_seqlens"),
    ("plain", "cu_seqlens_padded"): in_key(cut_out, "cu_seqlens_padded"),
    ("plain", "labels"): in_key(first_is_target, "labels"),
    ("transformers", "cu_seq_lens_q"): in_key(cut_out, "cu_seq_lens_q"),
    ("transformers", "cu_seq_lens_k"): in_key(cut_out, "cu_seq_lens_k"),
    ("transformers", "seq_idx"): in_key(merged_ids, "seq_idx"),
    ("transformers", "position_ids"): in_key(counting_on, "position_ids"),
    ("transformers", "labels"): in_key(first_is_target, "labels"),
    ("trl", "seq_lengths"): in_column(merged_lengths, "seq_lengths"),
    ("megatron", "cu_seqlens_q"): in_params(cut_out, "cu_seqlens_q"),
    ("megatron", "cu_seqlens_kv"): in_params(cut_out, "cu_seqlens_kv"),
    ("megatron", "cu_seqlens_q_padded"): in_params(cut_out, "cu_seqlens_q_padded"),
    ("megatron", "cu_seqlens_kv_padded"): in_params(cut_out, "cu_seqlens_kv_padded"),
    ("megatron", "all cu_seqlens"): in_params(
        cut_out, "cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded"
    ),
    ("megatron", "position_ids"): in_key(counting_on, "position_ids"),
    ("megatron", "labels"): in_key(last_predicts, "labels"),
    ("megatron", "loss_mask"): in_key(last_predicts, "loss_mask"),
    ("nemo", "seq_start_id"): in_column(cut_out, "seq_start_id"),
    ("nemo", "loss_mask"): in_column(last_predicts, "loss_mask"),
    ("jax", "inputs_segmentation"): in_key(merged_ids, "inputs_segmentation"),
    ("jax", "inputs_position"): in_key(counting_on, "inputs_position"),
    ("jax", "targets_position"): in_key(counting_on, "targets_position"),
    ("jax", "targets_segmentation"): in_key(last_predicts, "targets_segmentation"),
}


@pytest.mark.interop
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize(("name", "field"), MUTATIONS)
def test_no_boundary_can_be_taken_away(name: str, field: str, boundary: int) -> None:
    check, _ = CHECKS[name]
    case = RECTANGLE if name == "jax" else SIMPLE
    output = dialect(name)(case.batch)
    check(output, case)
    with pytest.raises((AssertionError, KeyError)):
        check(MUTATIONS[name, field](output, boundary), case)


def test_trl_masks_first_labels_itself() -> None:
    """The one field whose boundary TRL puts back: a first token that is a target is masked by its collator."""
    table = dialect("trl")(SIMPLE.batch)
    check_trl(in_column(first_is_target, "labels")(table, 1), SIMPLE)
    labels = table.column("labels").to_pylist()[0]
    assert [labels[start] for start, _ in SEGMENTS] == [-100] * 3, "but ours do not count on it"
