"""`verify` finds a change of any byte of any file, and everything the promises forbid."""

import json
import random
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from padless import TokenStore, plan
from padless.corpus.job import pack
from padless.corpus.manifest import MANIFEST, read_manifest
from padless.corpus.shard import Block, write_shard
from padless.corpus.store import Sample
from padless.corpus.verify import verify
from padless.errors import PadlessError

sys.path.insert(0, str(Path(__file__).parent))
from corpora import contents, write_jsonl


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with several shards, a tokenizer, rejected records and two plans."""
    from tokenizers import Tokenizer, models

    folder = tmp_path_factory.mktemp("store")
    backend = Tokenizer(models.WordLevel({**{f"w{i}": i for i in range(50)}, "<eos>": 50, "?": 51}, unk_token="?"))
    from tokenizers.pre_tokenizers import Whitespace

    backend.pre_tokenizer = Whitespace()
    backend.save(str(folder / "tokenizer.json"))
    chance = random.Random(3)
    records = [{"prompt": "w1 w2 ", "completion": " ".join(["w3"] * chance.randint(1, 20))} for _ in range(40)]
    records[7] = {"prompt": "w1"}
    source = write_jsonl(folder / "d.jsonl", records)
    pack(
        source,
        tokenizer=str(folder / "tokenizer.json"),
        eod="<eos>",
        capacity=32,
        output=folder / "out",
        on_bad_record="skip",
        shard_tokens=200,
    )
    opened = TokenStore(folder / "out")
    opened.add_plan(plan(opened.lengths, 64))
    return folder / "out"


def violations(folder: Path) -> list[str]:
    """What verify says; a refusal to read the store at all counts as one line."""
    try:
        return [line for check in verify(folder) for line in check.violations]
    except PadlessError as error:
        return [str(error)]


def test_a_fresh_store_is_clean_and_has_every_kind_of_file(store: Path) -> None:
    assert violations(store) == []
    names = set(contents(store))
    assert {"manifest.json", "rejected.jsonl", "plan-32.npz", "plan-64.npz", "tokenizer/tokenizer.json"} <= names
    assert {"tokens-00000.arrow", "tokens-00001.arrow"} <= names


def test_any_flipped_byte_of_any_file_is_found(store: Path, tmp_path: Path) -> None:
    chance = random.Random(5)
    for name, data in contents(store).items():
        for _ in range(12):
            copy = tmp_path / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(store, copy)
            at = chance.randrange(len(data))
            changed = bytearray(data)
            changed[at] ^= 1 << chance.randrange(8)
            (copy / name).write_bytes(bytes(changed))
            assert violations(copy), f"byte {at} of {name} was flipped and nobody noticed"


def test_a_missing_or_truncated_file_is_named(store: Path, tmp_path: Path) -> None:
    for name, data in contents(store).items():
        for left in (None, data[: len(data) // 2]):
            copy = tmp_path / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(store, copy)
            (copy / name).unlink()
            if left is not None:
                (copy / name).write_bytes(left)
            assert any(name in line for line in violations(copy)) or name == MANIFEST, (name, violations(copy))
            assert violations(copy)


def resign(folder: Path, **changes) -> None:
    """Give the manifest other values and its right digest, and every shard its right hash: an insider's change."""
    import msgspec

    from padless.corpus.manifest import store_fingerprint
    from padless.corpus.writer import describe_shard

    manifest = read_manifest(folder)
    eod = None if manifest.tokenizer is None else manifest.tokenizer.eod_id
    shards = tuple(describe_shard(folder / entry.name, eod) for entry in manifest.shards)
    changes = {"shards": shards, "fingerprint": store_fingerprint(manifest.encoding, shards), **changes}
    (folder / MANIFEST).write_bytes(msgspec.structs.replace(manifest, **changes).to_json())


def test_a_plan_of_another_store_is_found(store: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(store, tmp_path / "copy")
    other = TokenStore.write(tmp_path / "other", [[1, 2, 3]] * 39, vocab_size=60)
    entry = other.add_plan(plan(other.lengths, 32))
    shutil.copy(tmp_path / "other" / entry.name, copy / entry.name)
    assert any("plan-32.npz" in line for line in violations(copy))
    resign(copy, plans=(entry,))
    assert any("plan-64.npz is in the folder and not in the manifest" in line for line in violations(copy))
    (copy / "plan-64.npz").unlink()
    assert any("placed" in line or "fingerprint" in line for line in violations(copy)), violations(copy)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("eod", "do not end with EOD"),
        ("double eod", "end with more than one EOD"),
        ("vocabulary", "outside the vocabulary"),
        ("first target", "have their first token as a target"),
        ("no target", "have no target"),
    ],
)
def test_broken_promises_are_found_even_when_every_hash_is_right(
    store: Path, tmp_path: Path, change: str, expected: str
) -> None:
    from padless.corpus.shard import Shard

    copy = shutil.copytree(store, tmp_path / "copy")
    path = copy / "tokens-00000.arrow"
    shard = Shard(path)
    tokens, targets = shard.tokens.copy(), shard.targets_between(0, len(shard.tokens)).copy()
    end = int(shard.offsets[3])
    start = int(shard.offsets[2])
    if change == "eod":
        tokens[end - 1] = 3
    elif change == "double eod":
        tokens[end - 2] = 50
    elif change == "vocabulary":
        tokens[end - 2] = 99
    elif change == "first target":
        targets[start] = True
    else:
        targets[start:end] = False
    block = Block(
        tokens=tokens,
        lengths=np.diff(shard.offsets),
        targets=targets,
        sources=shard.sources,
        records=shard.records,
    )
    path.unlink()
    write_shard(path, block)
    resign(copy)
    assert any(expected in line for line in violations(copy)), violations(copy)


def test_stores_made_from_arrays_verify_too(tmp_path: Path) -> None:
    sample = Sample(np.array([1, 2, 3]), np.array([False, False, True]))
    TokenStore.write(tmp_path / "s", [sample, [4, 5]], vocab_size=10)
    assert violations(tmp_path / "s") == []


def test_no_store_at_all(tmp_path: Path) -> None:
    with pytest.raises(PadlessError, match="does not exist"):
        verify(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PadlessError, match="not a padless store"):
        verify(tmp_path / "empty")


def test_unknown_keys_in_the_manifest_are_refused(store: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(store, tmp_path / "copy")
    manifest = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_text(json.dumps({**manifest, "packed_by": "someone"}))
    with pytest.raises(PadlessError, match="unknown field `packed_by`"):
        read_manifest(copy)
