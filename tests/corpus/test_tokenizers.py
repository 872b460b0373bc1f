"""Tokenizers: what is loaded, what ends a sample, and which tokens hold which characters."""

import itertools
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from padless.corpus.spans import spans_by_bytes
from padless.corpus.tokenizers import BytesTokenizer, FileTokenizer, load_tokenizer
from padless.errors import PadlessError

TEXTS = [
    "the quick brown fox",
    "na\u00efve caf\u00e9 \u65e5\u672c\u8a9e",
    "def f(x):\n    return x + 1\n",
    "a  b   c\t\n\n",
]


def byte_level(**options: bool) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, **options)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    train(
        tokenizer,
        trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, special_tokens=["<|endoftext|>", "<pad>"]),
    )
    return tokenizer


def metaspace() -> tokenizers.Tokenizer:
    """As Llama 2: a mark for spaces, one before the text, bytes for what is unknown, and a frame."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    train(tokenizer, trainers.BpeTrainer(vocab_size=400, special_tokens=specials))
    frame = [("<s>", 1), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=frame)
    return tokenizer


def word_piece() -> tokenizers.Tokenizer:
    """As BERT: lower case, accents gone, spaces gone, [CLS] and [SEP]."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    train(tokenizer, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "[CLS]", "[SEP]"]))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return tokenizer


def train(tokenizer: tokenizers.Tokenizer, trainer: trainers.Trainer) -> None:
    trainer.show_progress = False
    tokenizer.train_from_iterator(TEXTS * 3, trainer)


def framed() -> tokenizers.Tokenizer:
    """As Llama 3: split by a pattern, then bytes, and a token before every text."""
    tokenizer = byte_level()
    pattern = tokenizers.Regex(r"\p{L}+|\p{N}|[^\p{L}\p{N}]+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pattern, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    begin = processors.TemplateProcessing(single="<pad> $A", special_tokens=[("<pad>", 1)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), begin])
    return tokenizer


def composed() -> tokenizers.Tokenizer:
    """As Qwen: bytes after Unicode's composition, so bytes of the text and of the tokens can differ."""
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def greedy_mask() -> tokenizers.Tokenizer:
    """As RoBERTa: a special token that takes the spaces before it, which then are in no token."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
    return tokenizer


KINDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "byte-level": byte_level,
    "byte-level without words": lambda: byte_level(use_regex=False),
    "byte-level in a frame": framed,
    "byte-level composed": composed,
    "byte-level with a greedy token": greedy_mask,
    "metaspace": metaspace,
    "word-piece": word_piece,
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileTokenizer]:
    folder = tmp_path_factory.mktemp("tokenizers")
    out = {}
    for name, make in KINDS.items():
        make().save(str(folder / f"{name}.json"))
        out[name] = load_tokenizer(str(folder / f"{name}.json"))
    return out


def naive_span(tokenizer: FileTokenizer, text: str, start: int, end: int) -> set[int]:
    """Every token that holds a character of `text[start:end]`, from the list of all offsets."""
    offsets = tokenizer._backend.encode(text).offsets
    return {i for i, (first, stop) in enumerate(offsets) if first < end and stop > start and stop > first}


pieces_of_text = st.text(st.sampled_from("abc \n\t(\u00e9\u65e5\U0001f600"), max_size=12) | st.sampled_from(
    [*TEXTS, "<|endoftext|>", " <mask>", "e\u0301"]
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(parts=st.lists(pieces_of_text, min_size=1, max_size=4))
def test_spans_hold_exactly_the_tokens_of_their_characters(kind: str, parts: list[str], loaded: dict):
    tokenizer, text = loaded[kind], "".join(parts)
    ends = np.cumsum([0, *map(len, parts)]).tolist()
    spans = [(a, b) for a, b in itertools.pairwise(ends) if a < b]
    [found] = tokenizer.encode_spans([text], [spans])
    assert found.ids == tokenizer.encode_batch([text])[0] == tokenizer._backend.encode(text).ids
    for (first, stop), (start, end) in zip(found.spans, spans, strict=True):
        assert set(range(first, stop)) == naive_span(tokenizer, text, start, end)
    offsets = tokenizer._backend.encode(text).offsets
    outside = sum((offsets[i][0] < a or offsets[i][1] > b) for a, b in spans for i in naive_span(tokenizer, text, a, b))
    assert found.straddling == outside


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), min_size=1, max_size=4))
def test_bytes_hold_any_text_and_never_straddle(parts: list[str]):
    tokenizer, text = BytesTokenizer(), "".join(parts)
    [ids] = tokenizer.encode_batch([text])
    assert tokenizer.decode(ids) == text
    ends = np.cumsum([0, *map(len, parts)]).tolist()
    [found] = tokenizer.encode_spans([text], [list(itertools.pairwise(ends))])
    assert [tokenizer.decode(ids[a:b]) for a, b in found.spans] == parts
    assert found.straddling == 0
    assert tokenizer.decode([*ids, 256, *ids]) == f"{text}<eod>{text}"


@pytest.mark.parametrize("kind", ["byte-level", "byte-level without words"])
def test_byte_level_gives_the_text_back(kind: str, loaded: dict):
    for text in TEXTS:
        assert loaded[kind].decode(loaded[kind].encode_batch([text])[0]) == text


def test_the_fast_way_is_taken_where_it_holds_and_left_where_it_does_not(loaded: dict):
    fast = {name for name, tokenizer in loaded.items() if tokenizer._token_bytes is not None}
    assert fast == set(KINDS) - {"byte-level composed", "metaspace", "word-piece"}
    tokenizer, text = loaded["byte-level with a greedy token"], "fox  <mask> fox"
    encoded = tokenizer.encode_batch([text, "fox"])
    found = spans_by_bytes(encoded, [text, "fox"], [[(0, 3)], [(3, 3)]], tokenizer._token_bytes, (0, 0))
    assert found[0] is None
    assert found[1].spans == [(len(encoded[1]), len(encoded[1]))]


def test_merge_dropout_is_switched_off(tmp_path: Path, loaded: dict):
    dice = json.loads(byte_level().to_str())
    dice["model"]["dropout"] = 0.9
    (tmp_path / "tokenizer.json").write_text(json.dumps(dice))
    assert load_tokenizer(str(tmp_path)).encode_batch(TEXTS) == loaded["byte-level"].encode_batch(TEXTS)


def test_spaces_that_a_tokenizer_drops_are_no_ones_token(loaded: dict):
    [found] = loaded["word-piece"].encode_spans(["fox  fox  "], [[(3, 5), (8, 10)]])
    frame = found.ids
    assert [stop - first for first, stop in found.spans] == [0, 0]
    assert len(frame) == 4


def test_truncation_and_padding_of_the_file_are_switched_off(tmp_path: Path, loaded: dict):
    hostile = byte_level()
    hostile.enable_truncation(3)
    hostile.enable_padding(length=64)
    hostile.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode_batch(TEXTS) == loaded["byte-level"].encode_batch(TEXTS)
    assert tokenizer.fingerprint == loaded["byte-level"].fingerprint
    assert tokenizer.fingerprint != loaded["metaspace"].fingerprint


def test_a_folder_brings_its_special_tokens_and_template(tmp_path: Path):
    metaspace().save(str(tmp_path / "tokenizer.json"))
    config = {"eos_token": {"content": "</s>"}, "pad_token": "<unk>", "bos_token": "<s>", "model_max_length": 4}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": "one"}))
    folder, file = load_tokenizer(str(tmp_path)), load_tokenizer(str(tmp_path / "tokenizer.json"))
    for tokenizer in (folder, file, pickle.loads(pickle.dumps(folder))):
        assert (tokenizer.eod_id, tokenizer.pad_id, tokenizer.chat_template) == (2, 0, "one")
        assert tokenizer.special == {"eos_token": "</s>", "pad_token": "<unk>", "bos_token": "<s>"}
        assert tokenizer.encode_batch(["fox"]) == folder.encode_batch(["fox"])
        assert tokenizer.token_text(2) == "</s>"
    several = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": several}))
    assert load_tokenizer(str(tmp_path)).chat_template == "d"
    (tmp_path / "chat_template.jinja").write_text("j")
    assert load_tokenizer(str(tmp_path)).chat_template == "j"


def test_transformers_folders_load_with_their_end_token(tmp_path: Path):
    from transformers import PreTrainedTokenizerFast

    saved = PreTrainedTokenizerFast(tokenizer_object=byte_level(), eos_token="<|endoftext|>", pad_token="<pad>")
    saved.chat_template = "{{ messages }}"
    saved.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path))
    assert (tokenizer.eod_id, tokenizer.pad_id, tokenizer.chat_template) == (0, 1, "{{ messages }}")
    assert tokenizer.encode_batch(TEXTS) == saved(TEXTS)["input_ids"]


def test_the_end_token_is_found_named_or_missing(tmp_path: Path, loaded: dict):
    path = str(tmp_path / "tokenizer.json")
    byte_level().save(path)
    assert loaded["byte-level"].eod_id == 0
    assert loaded["word-piece"].eod_id is None
    assert load_tokenizer(path, eod="<pad>", pad=0).eod_id == 1
    assert load_tokenizer(path, eod="7").eod_id == 7
    assert load_tokenizer("bytes", eod=0, pad="256").pad_id == 256
    for wrong in ("<none>", 330, -1, "99999"):
        with pytest.raises(PadlessError, match=r"EOD token .* is not in the vocabulary"):
            load_tokenizer(path, eod=wrong)


def test_ids_beyond_the_count_are_inside_the_vocabulary(tmp_path: Path):
    vocabulary = {"a": 0, "b": 900}
    tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(str(tmp_path)).vocab_size == 901


def test_what_is_no_tokenizer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "latin.json").write_bytes(b"\xff")
    tokenizers.Tokenizer(models.BPE()).save(str(tmp_path / "untrained.json"))
    for name, message in {
        "broken.json": "is not a tokenizer.json",
        "other.json": "cannot be read by tokenizers",
        "list.json": "is not a tokenizer.json",
        "latin.json": "cannot read",
        "untrained.json": "empty vocabulary",
        "none.json": "there is no tokenizer at",
        ".": "holds no tokenizer.json",
    }.items():
        with pytest.raises(PadlessError, match=message):
            load_tokenizer(str(tmp_path / name))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PadlessError, match="no tokenizer of that name in the hub's cache or within reach"):
        load_tokenizer("no-such-owner/no-such-tokenizer")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(PadlessError, match=r"needs huggingface_hub: pip install 'padless\[hf\]'"):
        load_tokenizer("gpt2")


def test_a_hub_name_is_taken_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    snapshot = tmp_path / "models--someone--tiny" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--someone--tiny" / "refs").mkdir()
    (tmp_path / "models--someone--tiny" / "refs" / "main").write_text("abc")
    byte_level().save(str(snapshot / "tokenizer.json"))
    (snapshot / "tokenizer_config.json").write_text('{"eos_token": "<pad>"}')
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    tokenizer = load_tokenizer("someone/tiny")
    assert (tokenizer.name, tokenizer.eod_id) == ("someone/tiny", 1)
