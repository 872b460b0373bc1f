"""The promises over random corpora, held against what a plain reading of the records gives."""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless import PackedDataset, TokenStore
from padless.corpus.job import pack
from padless.corpus.tokenizer_files import open_tokenizer
from padless.corpus.verify import verify
from padless.errors import PadlessError

sys.path.insert(0, str(Path(__file__).parent))
from corpora import contents, write_jsonl

VOCAB = 257  # of the built-in byte tokenizer


@st.composite
def records(draw: st.DrawFn) -> list[dict]:
    """Records with tokens of their own and labels for some of them; the EOD (any id) may stand anywhere inside."""
    found = []
    for _ in range(draw(st.integers(1, 25))):
        ids = draw(st.lists(st.integers(0, 5), min_size=2, max_size=40))
        wanted = draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
        wanted[-1] = wanted[-1] or not any(wanted[1:])
        found.append({"input_ids": ids, "labels": [i if want else -100 for i, want in zip(ids, wanted, strict=True)]})
    return found


def expected(record: dict, eod: int | None) -> tuple[list[int], list[bool]]:
    """Tokens and targets of a record, said again in the plainest way."""
    ids, wanted = list(record["input_ids"]), [label != -100 for label in record["labels"]]
    if eod is not None:
        last = wanted[-1]
        while len(ids) > 1 and ids[-1] == eod and ids[-2] == eod:
            ids, wanted = ids[:-1], wanted[:-1]
        if ids[-1] != eod:
            ids, wanted = [*ids, eod], [*wanted, last]
    wanted[0] = False
    return ids, wanted


@given(
    data=records(),
    capacity=st.integers(2, 50),
    oversize=st.sampled_from(["error", "truncate", "split", "drop"]),
    align=st.sampled_from([1, 1, 2, 4]),
    max_segments=st.sampled_from([None, 1, 3]),
    eod=st.sampled_from([256, 0, 3]),
    add_eod=st.booleans(),
    seed=st.integers(0, 3),
    shard_tokens=st.integers(1, 200),
)
@settings(max_examples=120, deadline=None)
def test_every_promise_over_random_corpora(
    data, capacity, oversize, align, max_segments, eod, add_eod, seed, shard_tokens
) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source = write_jsonl(folder / "d.jsonl", data)
        arguments = {
            "tokenizer": "bytes",
            "capacity": capacity,
            "output": folder / "out",
            "targets": "all",
            "oversize": oversize,
            "align": align,
            "max_segments": max_segments,
            "eod": str(eod) if add_eod else None,
            "add_eod": add_eod,
            "seed": seed,
            "shard_tokens": shard_tokens,
            "on_bad_record": "skip",
        }
        limit = capacity // align * align
        kept = []
        for record in data:
            ids, wanted = expected(record, eod if add_eod else None)
            if any(wanted):
                kept.append((ids, wanted))
        too_long = [ids for ids, _ in kept if len(ids) > limit]
        nothing = not kept or (oversize == "drop" and len(too_long) == len(kept))
        if align > capacity or nothing or (too_long and oversize == "error"):
            with pytest.raises(PadlessError):
                pack(source, **arguments)
            assert not (folder / "out").exists()
            return
        summary = pack(source, **arguments)
        assert [line for check in verify(folder / "out") for line in check.violations] == []
        assert summary.rejected_records == len(data) - len(kept)
        check_rows(TokenStore(folder / "out"), kept, limit, oversize, summary, pad_id=eod)


def check_rows(store, kept, limit, oversize, summary, pad_id) -> None:
    """Promises 1, 2 and 6 on the rows themselves; pad equals EOD on purpose."""
    spec = store.plan().spec
    whole = spec.capacity % spec.align == 0  # else rows cannot follow each other aligned
    dataset = PackedDataset(store, pad_rows=whole, pad_id=pad_id)
    pieces: dict[int, list[tuple[int, list[int], list[bool]]]] = {}
    for row in range(len(dataset)):
        batch = dataset[row]
        assert batch.num_slots == spec.capacity if whole else batch.num_slots <= spec.capacity
        assert spec.max_segments is None or batch.num_segments <= spec.max_segments
        sample_ids, starts, _ = dataset.plan.row(row)
        padding = batch.segment_ids == 0
        assert (batch.labels[padding] == -100).all()
        slots = np.flatnonzero(~padding)
        ids, labels = batch.unpack(batch.input_ids), batch.unpack(batch.labels)
        assert sum(len(part) for part in ids) == len(slots)
        for sample, start, tokens, targets in zip(sample_ids.tolist(), starts.tolist(), ids, labels, strict=True):
            assert targets[0] == -100
            assert all(label in (-100, token) for label, token in zip(targets.tolist(), tokens.tolist(), strict=True))
            pieces.setdefault(sample, []).append((start, tokens.tolist(), (targets != -100).tolist()))
    lost = {"truncated": 0, "dropped": 0}
    for sample, (ids, wanted) in enumerate(kept):
        found = sorted(pieces.get(sample, []))
        tokens = [token for _, part, _ in found for token in part]
        promised = ids
        if len(ids) > limit and oversize == "truncate":
            promised = ids[:limit]
            lost["truncated"] += len(ids) - limit
        elif len(ids) > limit and oversize == "drop":
            promised = []
            lost["dropped"] += len(ids)
        assert tokens == promised
        assert len(found) <= 1 or oversize == "split"
        mask = [flag for _, _, part in found for flag in part]
        begins = {start for start, _, _ in found}
        assert mask == [flag and at not in begins for at, flag in enumerate(wanted[: len(promised)])]
    assert summary.truncated_tokens == lost["truncated"]
    assert summary.dropped_tokens == lost["dropped"]


def test_workers_give_the_same_bytes(tmp_path: Path) -> None:
    """Promise 3 across processes: two workers, one worker, and one that reads in other batches."""
    chance = np.random.default_rng(0)
    texts = ["".join(chance.choice(list("abc \n"), chance.integers(1, 400))) + "." for _ in range(9000)]
    source = write_jsonl(tmp_path / "d.jsonl", [{"text": text} for text in texts])
    for workers in (1, 2):
        pack(
            source,
            tokenizer="bytes",
            capacity=512,
            output=tmp_path / f"out{workers}",
            workers=workers,
            shard_tokens=50_000,
        )
    assert contents(tmp_path / "out1") == contents(tmp_path / "out2")


def test_gsm8k_comes_back_whole_from_the_packed_rows(shared_data: Path, tmp_path: Path) -> None:
    """Decoded again, rows give back every text, and exactly the assistant's words are targets."""
    sys.path.insert(0, str(Path(__file__).parent.parent.parent / "examples"))
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    lines = (shared_data / "text" / "gsm8k_train.jsonl").read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=["<|im_end|>", "<|im_start|>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator((record["question"] for record in records[:1000]), trainer)
    backend.save(str(tmp_path / "tokenizer.json"))
    chats = [
        {
            "messages": [
                {"role": "user", "content": record["question"]},
                {"role": "assistant", "content": record["answer"]},
            ]
        }
        for record in records
    ]
    source = write_jsonl(tmp_path / "chats.jsonl", chats)
    pack(
        source,
        tokenizer=str(tmp_path / "tokenizer.json"),
        eod="<|im_end|>",
        chat_template="chatml",
        capacity=1024,
        output=tmp_path / "out",
    )
    store = TokenStore(tmp_path / "out")
    assert [line for check in verify(store.path) for line in check.violations] == []
    decode = open_tokenizer(store.path, store.manifest).decode
    dataset = PackedDataset(store)
    seen = set()
    for row in range(0, len(dataset), 40):
        batch = dataset.__getitems__(range(row, min(row + 40, len(dataset))))
        parts = zip(batch.sample_ids.tolist(), batch.unpack(batch.input_ids), batch.unpack(batch.labels), strict=True)
        for sample, ids, labels in parts:
            record = records[sample]
            assert decode(ids) == (
                f"<|im_start|>user\n{record['question']}<|im_end|>\n<|im_start|>assistant\n{record['answer']}<|im_end|>"
            )
            assert decode(ids[labels != -100]) == record["answer"] + "<|im_end|>"
            seen.add(sample)
    assert seen == set(range(len(records)))


@pytest.mark.parametrize("oversize", ["truncate", "split", "drop"])
def test_the_targets_in_rows_are_counted_whatever_was_cut(tmp_path: Path, oversize: str) -> None:
    records = [{"prompt": "p" * n, "completion": "c" * m} for n, m in ((2, 3), (4, 30), (20, 5), (15, 1), (16, 2))]
    source = write_jsonl(tmp_path / "d.jsonl", records)
    summary = pack(source, tokenizer="bytes", capacity=16, output=tmp_path / "o", oversize=oversize)
    store = TokenStore(tmp_path / "o")
    plan = store.plan()
    counted = [
        int(store.gather(*(part[[i]] for part in plan.row(r)))[1].sum())
        for r in range(plan.num_rows)
        for i in range(len(plan.row(r)[0]))
    ]
    assert summary.trained.targets == sum(counted) < summary.targets
    assert summary.trained.without_target == {"truncate": 2, "split": 0, "drop": 0}[oversize]
