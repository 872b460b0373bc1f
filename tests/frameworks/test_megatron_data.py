"""Megatron's two data paths as ours: every sample once, EOD by position, masks by position, nothing across boundaries."""

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
    ScheduledBatches,
    megatron_batch,
    prepacked,
    scheduled,
    sft_item,
    varlen_item,
    with_eod,
)
from padless.training import RowSampler

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
    with pytest.raises(ViolationError, match="sample 0 .* ends with token 6 and not with EOD"):
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


def snake(slots: np.ndarray) -> list[list[np.ndarray]]:
    """Two micro-batches for two ranks."""
    order = np.argsort(-slots, kind="stable")
    return [[order[m::4], order[3 - m :: 4]] for m in (0, 1)]


@pytest.fixture
def dataset(tmp_path: Path) -> MegatronDataset:
    rng = np.random.default_rng(0)
    samples = [(rng.integers(3, 10, n).tolist(), [False] + [True] * (n - 1)) for n in rng.integers(1, 20, 40)]
    return scheduled(store_of(tmp_path / "s", samples), 24, pad_granularity=4, eod_id=EOD)


def sampler_of(dataset: MegatronDataset) -> RowSampler:
    return RowSampler(dataset, rows=8, drop_last=True, ranks=1, rank=0, seed=3)


def test_ranks_share_a_global_batch(dataset: MegatronDataset) -> None:
    seen: Counter = Counter()
    per_rank = [list(ScheduledBatches(sampler_of(dataset), snake, rank)) for rank in (0, 1)]
    assert [len(steps) for steps in per_rank] == [5, 5]
    for steps in zip(*per_rank, strict=True):
        assert all(len(micro_batches) == 2 for micro_batches in steps)
        together = [i for micro_batches in steps for batch in micro_batches for i in batch.sample_ids.tolist()]
        assert len(set(together)) == 8
        seen.update(together)
    assert set(seen.values()) == {1}
    assert len(seen) == 40


def test_a_schedule_resumes(dataset: MegatronDataset) -> None:
    def ids(steps: list) -> list:
        return [[batch.sample_ids.tolist() for batch in step] for step in steps]

    whole = ids(list(ScheduledBatches(sampler_of(dataset), snake, 1)))
    sampler = sampler_of(dataset)
    begun = iter(ScheduledBatches(sampler, snake, 1))
    first = ids([next(begun), next(begun)])
    again = sampler_of(dataset)
    again.load_state_dict(sampler.state_dict())
    assert first + ids(list(ScheduledBatches(again, snake, 1))) == whole


def test_the_scheduler_sees_slots_and_not_tokens(dataset: MegatronDataset) -> None:
    seen = []

    def look(slots: np.ndarray) -> list[list[np.ndarray]]:
        seen.append(slots)
        return [[np.arange(len(slots))]]

    batches = [step[0] for step in ScheduledBatches(sampler_of(dataset), look, 0)]
    for slots, batch in zip(seen, batches, strict=True):
        assert (slots % 4 == 0).all()
        assert slots.sum() == batch.num_slots


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (lambda slots: [[[], np.arange(len(slots))]], "left rank 0 without a sample in micro-batch 0"),
        (lambda slots: [[[0], [1]]], "placed 2 of 8"),
        (lambda slots: [[np.arange(8), np.arange(8)]], "placed 16 of 8"),
        (lambda slots: [[np.arange(8)], [[0], [1]]], "for \\[1, 2\\] ranks"),
        (lambda slots: [[np.arange(8)]], "rank=1 and the scheduler gave work for 1"),
    ],
)
def test_a_schedule_that_would_hang_or_lose_samples_is_refused(dataset: MegatronDataset, schedule, message) -> None:
    with pytest.raises(PadlessError, match=message):
        next(iter(ScheduledBatches(sampler_of(dataset), schedule, 1)))


def test_packed_rows_are_not_scheduled_again(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", [([5, 6], [False, True])] * 4)
    rows = MegatronDataset(store, plan(store.lengths, 16), eod_id=EOD)
    with pytest.raises(PadlessError, match="packed already"):
        ScheduledBatches(RowSampler(rows, rows=1, drop_last=False, ranks=1, rank=0), snake, 0)
    singles = scheduled(store, 16, eod_id=EOD)
    with pytest.raises(PadlessError, match="deals rows to 2 ranks"):
        ScheduledBatches(RowSampler(singles, rows=2, drop_last=False, ranks=2, rank=0), snake, 0)
