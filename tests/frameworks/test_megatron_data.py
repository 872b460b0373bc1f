"""Megatron's two data paths as ours: every sample once, EOD and masks by position, nothing across boundaries."""

import dataclasses
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless import TokenStore, plan
from padless.corpus import Sample
from padless.errors import PadlessError, ViolationError
from padless.frameworks.megatron import (
    Items,
    MegatronDataset,
    MicroBatch,
    ScheduledBatches,
    megatron_batch,
    prepacked,
    scheduled,
    sft_item,
    varlen_item,
    with_eod,
)
from padless.training import Cost, RowSampler
from padless.training.context_parallel import ContextParallel, Shard
from padless.training.scheduling import SCHEDULERS, SchedulingSpec

EOD = 2
Given = list[tuple[list[int], list[bool]]]


@st.composite
def conversations(draw: st.DrawFn) -> Given:
    """Ids in which EOD comes anywhere, also at the start and several times at the end; first tokens are no targets."""
    found = []
    for _ in range(draw(st.integers(1, 12))):
        ids = draw(st.lists(st.integers(1, 9), min_size=1, max_size=11))
        found.append((ids, [False, *(draw(st.booleans()) for _ in ids[1:])]))
    return found


def ended(ids: list[int], targets: list[bool]) -> tuple[list[int], list[bool]]:
    """One EOD at the end, as a loop of words would have it."""
    end = len(ids)
    while end and ids[end - 1] == EOD:
        end -= 1
    last = False if end == 0 else targets[min(end, len(ids) - 1)]
    return [*ids[:end], EOD], [*targets[:end], last]


def store_of(folder: Path, given_samples: Given) -> TokenStore:
    samples = [Sample(np.array(ids), np.array(targets)) for ids, targets in given_samples]
    return TokenStore.write(folder, with_eod(samples, EOD), vocab_size=10, eod_id=EOD)


def supervised(item: dict) -> list[tuple[int, int, int]]:
    """`(position, input, label)` of everything that is trained on."""
    return [
        (position, token, label)
        for position, token, label, weight in zip(
            *(item[name].reshape(-1).tolist() for name in ("position_ids", "tokens", "labels", "loss_mask")),
            strict=True,
        )
        if weight
    ]


def expected(samples: Given, eod_loss: bool) -> Counter:
    """What one sample alone would train on: the target at i is predicted from i - 1."""
    return Counter(
        (i - 1, ids[i - 1], ids[i])
        for ids, targets in samples
        for i in range(1, len(ids))
        if targets[i] and (eod_loss or i < len(ids) - 1)
    )


@pytest.mark.interop
@pytest.mark.parametrize("eod_loss", [True, False])
@settings(deadline=None, max_examples=25)
@given(samples=conversations(), granularity=st.sampled_from([1, 2, 4]))
def test_both_paths_train_on_what_each_sample_alone_does(
    tmp_path_factory: pytest.TempPathFactory, samples: Given, granularity: int, eod_loss: bool
) -> None:
    store = store_of(tmp_path_factory.mktemp("s"), samples)
    whole = [ended(*sample) for sample in samples]
    assert [sample.input_ids.tolist() for sample in store] == [ids for ids, _ in whole]
    store.add_plan(plan(store.lengths, 16, align=granularity))
    rows = prepacked(store, 16, pad_granularity=granularity, eod_id=EOD, eod_loss=eod_loss, pad_id=EOD)
    singles = scheduled(store, 12, pad_granularity=granularity, eod_id=EOD, eod_loss=eod_loss, pad_id=EOD)
    wanted = expected(whole, eod_loss)
    for dataset, item in ((rows, sft_item), (rows, megatron_batch), (singles, varlen_item), (singles, megatron_batch)):
        found = Counter()
        for made in (Items(dataset, item)[row] for row in range(len(dataset))):
            found.update(supervised(made))
        assert found == wanted, "a pad id that is EOD, EOD inside a sample and the neighbours change nothing"
    for buffer in (rows[row] for row in range(len(rows))):
        assert buffer.num_slots == 16
        assert (buffer.starts % granularity == 0).all()
    lengths = Counter(
        (int(made["original_seq_len"][0]), int(made["padded_seq_len"][0]), len(made["tokens"]))
        for made in (varlen_item(row) for row in singles)
    )
    padded = [-(-len(ids) // granularity) * granularity for ids, _ in whole]
    assert lengths == Counter((len(ids), slots, slots) for (ids, _), slots in zip(whole, padded, strict=True))


def test_the_books_count_every_conversation(tmp_path: Path) -> None:
    """SFTDataset drops what follows a long conversation without a word."""
    store = store_of(tmp_path / "s", [([5] * n, [False] + [True] * (n - 1)) for n in (3, 30, 4, 5)])
    with pytest.raises(PadlessError, match="1 of 4 samples"):
        scheduled(store, 16, eod_id=EOD)
    books = scheduled(store, 16, eod_id=EOD, oversize="truncate").plan.accounting
    assert (books.samples, books.segments, books.truncated_samples, books.truncated_tokens) == (4, 4, 1, 31 - 16)
    assert scheduled(store, 16, eod_id=EOD, oversize="drop").plan.accounting.dropped_samples == 1
    pieces = scheduled(store, 16, eod_id=EOD, oversize="split")
    assert sum(row.num_tokens for row in pieces) == 4 + 31 + 5 + 6


@pytest.mark.parametrize("oversize", ["truncate", "split"])
def test_a_cut_sample_gets_no_eod_that_it_does_not_have(tmp_path: Path, oversize: str) -> None:
    """VarlenDataset overwrites the last token that it keeps with EOD, and trains on it."""
    store = store_of(tmp_path / "s", [([5, 6, EOD, 7, 8, EOD, 9, 3, 4], [False] + [True] * 8)])
    dataset = scheduled(store, 6, eod_id=EOD, eod_loss=False, oversize=oversize)
    pieces = sorted(row.input_ids.tolist() for row in dataset)
    assert [5, 6, EOD, 7, 8, EOD] in pieces, "the cut falls behind a turn's own EOD, which is no end of the sample"
    labels = next(row.labels.tolist() for row in dataset if row.input_ids[0] == 5)
    assert labels == [-100, 6, EOD, 7, 8, EOD], "and which is trained on, for it is not the one that ends the sample"
    if oversize == "split":
        assert next(row.labels.tolist() for row in dataset if row.input_ids[0] == 9) == [-100, 3, 4, -100]


def test_a_store_without_eod_is_refused(tmp_path: Path) -> None:
    store = TokenStore.write(tmp_path / "s", [[5, 6]], vocab_size=10)
    with pytest.raises(PadlessError, match="do not end with EOD"):
        scheduled(store, 8, eod_id=EOD)
    claims = TokenStore.write(tmp_path / "t", [[5, 6]], vocab_size=10, eod_id=EOD)
    with pytest.raises(PadlessError, match="nobody says which id"):
        scheduled(claims, 8)
    with pytest.raises(ViolationError, match=r"sample 0 .* ends with token 6 and not with EOD"):
        scheduled(claims, 8, eod_id=EOD)[0]
    with pytest.raises(PadlessError, match="sample 1 holds no tokens"):
        list(with_eod([[5], []], EOD))


def test_eod_of_a_packed_store_is_its_own(tmp_path: Path) -> None:
    from padless import pack

    (tmp_path / "a.jsonl").write_text('{"text": "to be"}\n')
    pack(tmp_path / "a.jsonl", tokenizer="bytes", capacity=8, output=tmp_path / "s")
    assert scheduled(tmp_path / "s", 8).eod_id == 256
    with pytest.raises(PadlessError, match="eod_id=2 and the samples of"):
        scheduled(tmp_path / "s", 8, eod_id=2)


def test_lengths_that_do_not_divide_name_the_one_that_would(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", [([5, 6], [False, True])])
    store.add_plan(plan(store.lengths, 12, align=2))
    with pytest.raises(PadlessError, match="give 12"):
        prepacked(store, 10, pad_granularity=4, eod_id=EOD)
    with pytest.raises(PadlessError, match="--capacity 12 --align 4"):
        prepacked(store, 12, pad_granularity=4, eod_id=EOD)
    assert prepacked(store, 12, pad_granularity=2, eod_id=EOD)[0].align == 2


def test_weights_per_sample_know_that_eod_is_off(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", [([5, 6, 7], [False, True, True]), ([8, 9], [False, True])])
    dataset = MegatronDataset(store, plan(store.lengths, 16), eod_id=EOD, eod_loss=False, loss_weights="per-sample")
    batch = dataset[0]
    assert float(batch.loss_weights.sum()) == pytest.approx(2), "each sample weighs 1, over the targets that are left"
    assert batch.num_targets == 3


# Scheduled batches --------------------------------------------------------------------------------------------------

CLUSTER = SchedulingSpec(dp=2, cp=2, max_seqlen_per_rank=32, cost=Cost(linear=8, quadratic=1), align=4)


@pytest.fixture
def dataset(tmp_path: Path) -> MegatronDataset:
    rng = np.random.default_rng(0)
    lengths = [*rng.integers(1, 12, 44).tolist(), 40, 50, 55, 60]
    samples = [(rng.integers(3, 10, n).tolist(), [False] + [True] * (n - 1)) for n in lengths]
    return scheduled(store_of(tmp_path / "s", samples), 64, eod_id=EOD)


def sampler_of(dataset: MegatronDataset) -> RowSampler:
    return RowSampler(dataset, rows=16, drop_last=True, ranks=1, rank=0, seed=3)


def epoch(dataset: MegatronDataset, strategy: str, rank: int) -> list[list[MicroBatch]]:
    return list(ScheduledBatches(sampler_of(dataset), CLUSTER, rank, strategy=strategy))


@pytest.mark.parametrize("strategy", SCHEDULERS)
def test_each_sample_of_an_epoch_is_in_one_group(dataset: MegatronDataset, strategy: str) -> None:
    """Ranks of one group hold the same samples, as wide as its alignment asks; no two groups share a rank."""
    per_rank = [epoch(dataset, strategy, rank) for rank in range(4)]
    assert [len(steps) for steps in per_rank] == [3] * 4
    seen: Counter = Counter()
    for steps in zip(*per_rank, strict=True):
        groups = {}
        for rank, parts in enumerate(steps):
            assert [part.number for part in parts] == sorted(part.number for part in parts)
            for part in parts:
                assert rank in part.group
                key = (part.number, part.group)
                ids = part.batch.sample_ids.tolist()
                assert groups.setdefault(key, ids) == ids
                assert part.batch.align == CLUSTER.unit_of(len(part.group))
                assert part.batch.num_slots <= CLUSTER.max_seqlen_per_rank * len(part.group)
                parallel = ContextParallel(ranks=len(part.group))
                local = Shard(batch=part.batch, parallel=parallel, rank=rank - part.group.start)
                assert local.num_slots * len(part.group) == part.batch.num_slots
        for ids in groups.values():
            seen.update(ids)
    assert set(seen.values()) == {1}, "also those that waited for a later global batch"
    assert len(seen) == 48


def test_samples_wait_for_a_later_global_batch_and_for_no_later_epoch(dataset: MegatronDataset) -> None:
    sizes = [
        sum(part.batch.num_segments for part in [*one, *other])
        for one, other in zip(epoch(dataset, "wlb", 0), epoch(dataset, "wlb", 2), strict=True)
    ]
    assert sizes[0] < 16, "so the test means something"
    assert sum(sizes) == 48


@pytest.mark.parametrize("strategy", ["dp-balanced", "wlb"])
def test_a_schedule_resumes_with_what_waits(dataset: MegatronDataset, strategy: str) -> None:
    def ids(steps: list[list[MicroBatch]]) -> list:
        return [[(part.number, part.batch.sample_ids.tolist()) for part in step] for step in steps]

    whole = ids(epoch(dataset, strategy, 1))
    begun = ScheduledBatches(sampler_of(dataset), CLUSTER, 1, strategy=strategy)
    first = ids([next(iter(begun))])
    state = json.loads(json.dumps(begun.state_dict()))
    again = ScheduledBatches(sampler_of(dataset), CLUSTER, 1, strategy=strategy)
    again.load_state_dict(state)
    assert first + ids(list(again)) == whole
    assert ids(list(begun)) == whole, "an epoch that was left begins again, and nothing waits from before"


def test_a_micro_batch_may_come_in_megatrons_words(dataset: MegatronDataset) -> None:
    made = ScheduledBatches(
        sampler_of(dataset), CLUSTER, 0, strategy="dynamic-cp", collate=lambda batch, group: megatron_batch(batch)
    )
    part = next(iter(made))[0]
    assert (part.batch["packed_seq_params"].cu_seqlens_q_padded % CLUSTER.unit_of(len(part.group)) == 0).all()


@pytest.mark.parametrize("strategy", ["dp-balanced", "dynamic-cp"])
def test_shapes_are_fixed_for_cuda_graphs(dataset: MegatronDataset, strategy: str) -> None:
    fixed = dataclasses.replace(CLUSTER, packed_sequences=9)
    made = ScheduledBatches(
        sampler_of(dataset), fixed, 0, strategy=strategy, collate=lambda batch, group: (batch, megatron_batch(batch))
    )
    shapes: dict[int, set] = {}
    for step in made:
        for part in step:
            batch, packed = part.batch
            assert batch.num_slots == fixed.max_seqlen_per_rank * len(part.group)
            assert batch.num_segments <= 8
            found = (packed["tokens"].shape, packed["packed_seq_params"].cu_seqlens_q.shape)
            shapes.setdefault(len(part.group), set()).add(found)
    assert all(len(found) == 1 for found in shapes.values())


def test_what_cannot_be_scheduled_is_refused(dataset: MegatronDataset, tmp_path: Path) -> None:
    rows = MegatronDataset(dataset.store, plan(dataset.store.lengths, 64), eod_id=EOD)
    with pytest.raises(PadlessError, match="rows of this data set are packed"):
        ScheduledBatches(RowSampler(rows, rows=1, drop_last=False, ranks=1, rank=0), CLUSTER, 0)
    with pytest.raises(PadlessError, match="ranks=2, replan=False"):
        ScheduledBatches(RowSampler(dataset, rows=2, drop_last=False, ranks=2, rank=0), CLUSTER, 0)
    with pytest.raises(PadlessError, match="rank=4 of 4 ranks"):
        ScheduledBatches(sampler_of(dataset), CLUSTER, 4)


def test_a_sample_longer_than_everything_is_named_before_any_step(dataset: MegatronDataset) -> None:
    """Theirs puts an empty bin in front of it and crashes, or takes it over capacity without a word."""
    small = dataclasses.replace(CLUSTER, max_seqlen_per_rank=8)
    with pytest.raises(PadlessError, match="slots"):
        list(ScheduledBatches(sampler_of(dataset), small, 0))


def test_too_few_samples_for_the_ranks_are_refused_and_not_left_waiting(dataset: MegatronDataset) -> None:
    many = dataclasses.replace(CLUSTER, dp=32, cp=1, max_seqlen_per_rank=64)
    with pytest.raises(PadlessError, match="16"):
        list(ScheduledBatches(sampler_of(dataset), many, 0))
