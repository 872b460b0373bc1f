"""Records to samples: targets, EOD, refusals; against what a reader of the text would say."""

import itertools
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from padless.corpus.encode import EncodedSample, Encoder
from padless.corpus.records import Chat, Ids, Pair, RecordError, Shape, detect_shape
from padless.corpus.sources import BadRecord, find_sources, first_record, read_raw
from padless.corpus.templates import CHATML, ChatTemplate, load_template
from padless.corpus.tokenizers import Tokenizer, load_tokenizer
from padless.errors import PadlessError

TEXT = Shape(kind="text", fields=("text",))
PAIR = Shape(kind="pair", fields=("prompt", "completion"))
CHAT = Shape(kind="messages", fields=("messages",))
LABELLED = Shape(kind="ids", fields=("input_ids",), extras=("labels",))
BARE = Shape(kind="ids", fields=("input_ids",))
BYTES = load_tokenizer("bytes")
EOD = 256


def train(path: Path, texts: list[str]) -> Tokenizer:
    """A byte-level tokenizer with the special tokens of chatml; `<|im_end|>` ends samples."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<|im_end|>", "<|im_start|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    backend.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}')
    return load_tokenizer(str(path))


@pytest.fixture(scope="module")
def chatml_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return train(tmp_path_factory.mktemp("tokenizer"), ["the quick brown fox jumps", "caf\u00e9 x = x + 1\n"] * 5)


def encode(encoder: Encoder, *records) -> list[EncodedSample]:
    """Samples of parsed records, none of which may fail; numbers and the promises of every sample are checked."""
    out = encoder.encode_parsed(list(enumerate(records, 1)))
    assert [item.number for item in out] == list(range(1, len(records) + 1))
    for sample in out:
        mask = sample.target_mask()
        assert not mask[0]
        assert mask.sum() == sample.num_targets > 0
        if encoder.add_eod:
            assert sample.ids[-1] == encoder.tokenizer.eod_id
            assert len(sample.ids) == 1 or sample.ids[-2] != encoder.tokenizer.eod_id
    return out


def refusal(encoder: Encoder, record) -> str:
    [error] = encoder.encode_parsed([(1, record)])
    assert isinstance(error, RecordError)
    return str(error)


def said(encoder: Encoder, sample: EncodedSample) -> tuple[str, str]:
    """The text of a sample, and of its targets."""
    return encoder.tokenizer.decode(sample.ids), encoder.tokenizer.decode(sample.ids[sample.target_mask()])


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10)


@settings(max_examples=60, deadline=None)
@given(prompt=texts | st.just(""), completion=texts)
def test_bytes_give_back_text_and_targets(prompt: str, completion: str):
    whole = encode(Encoder(tokenizer=BYTES, shape=TEXT), prompt + completion)[0]
    assert whole.spans is None
    assert BYTES.decode(whole.ids) == prompt + completion + "<eod>"
    encoder = Encoder(tokenizer=BYTES, shape=PAIR, targets="completion")
    sample = encode(encoder, Pair(prompt, completion))[0]
    assert np.array_equal(sample.ids, whole.ids)
    start = max(len(prompt.encode()), 1)
    assert sample.spans == ((start, len(whole.ids)),)
    bare = Encoder(tokenizer=BYTES, shape=PAIR, add_eod=False)
    assert encode(bare, Pair(prompt + "..", completion))[0].ids.tolist() == list((prompt + ".." + completion).encode())


@settings(max_examples=60, deadline=None)
@given(prompt=texts, completion=texts)
def test_a_token_is_a_target_when_it_holds_a_character_of_the_completion(
    prompt: str, completion: str, chatml_tokenizer
):
    encoder = Encoder(tokenizer=chatml_tokenizer, shape=PAIR, targets="completion")
    sample = encode(encoder, Pair(prompt, completion))[0]
    text, target = said(encoder, sample)
    assert text == prompt + completion + "<|im_end|>"
    [span] = sample.spans
    assert span[1] == len(sample.ids)
    if not sample.straddling:
        assert target == completion + "<|im_end|>"
    else:
        assert sample.straddling == 1  # one border, one token across it
        assert len(chatml_tokenizer.decode(sample.ids[span[0] + 1 :])) < len(completion + "<|im_end|>")


def test_a_straddling_token_is_trained_and_counted(chatml_tokenizer: Tokenizer):
    encoder = Encoder(tokenizer=chatml_tokenizer, shape=PAIR, targets="completion")
    apart, across = encode(encoder, Pair("the", " quick"), Pair("the ", "quick"))
    assert said(encoder, apart)[1] == said(encoder, across)[1] == " quick<|im_end|>"
    assert (apart.straddling, across.straddling) == (0, 1)


EODS = "<|im_end|>"


@pytest.mark.parametrize(
    ("text", "ids_kept", "surplus"),
    [("fox", "fox", 0), (f"fox{EODS}", "fox", 0), (f"fox{EODS * 3}", "fox", 2), (f"a{EODS}fox", f"a{EODS}fox", 0)],
)
def test_every_sample_ends_with_exactly_one_eod(text: str, ids_kept: str, surplus: int, chatml_tokenizer: Tokenizer):
    encoder = Encoder(tokenizer=chatml_tokenizer, shape=TEXT)
    assert encoder.tokenizer.pad_id == encoder.tokenizer.eod_id == 0
    [sample] = encode(encoder, text)
    assert said(encoder, sample)[0] == ids_kept + EODS
    assert sample.surplus_eod == surplus
    assert sample.target_mask()[-1]
    bare = Encoder(tokenizer=chatml_tokenizer, shape=TEXT, add_eod=False)
    assert said(bare, encode(bare, text)[0])[0] == text


def test_eod_alone_and_nothing_are_refused(chatml_tokenizer: Tokenizer):
    assert "no target" in refusal(Encoder(tokenizer=chatml_tokenizer, shape=TEXT), EODS)
    assert "no token" in refusal(Encoder(tokenizer=chatml_tokenizer, shape=TEXT), "")
    assert "no target" in refusal(Encoder(tokenizer=BYTES, shape=TEXT, add_eod=False), "a")


def test_a_frame_that_ends_in_eod_is_not_doubled(tmp_path: Path):
    backend = tokenizers.Tokenizer(models.WordLevel({"</s>": 0, "<s>": 1, "fox": 2}, unk_token="</s>"))
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 0)]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path))
    [sample] = encode(Encoder(tokenizer=tokenizer, shape=TEXT), "fox")
    assert sample.ids.tolist() == [1, 2, 0]
    template = ChatTemplate(source="{{ messages[0].content }}")
    [chat] = encode(
        Encoder(tokenizer=tokenizer, shape=CHAT, template=template), Chat([{"role": "user", "content": "fox"}])
    )
    assert chat.ids.tolist() == [2, 0]  # a template writes its own beginning


turns = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), texts), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(turns=turns)
def test_the_assistants_turns_are_the_targets(turns: list, chatml_tokenizer: Tokenizer):
    chat = Chat([{"role": role, "content": text} for role, text in turns])
    encoder = Encoder(
        tokenizer=chatml_tokenizer, shape=CHAT, targets="assistant", template=load_template("chatml", chatml_tokenizer)
    )
    answers = [text + EODS for role, text in turns if role == "assistant"]
    if not answers:
        assert "no target" in refusal(encoder, chat)
        return
    [sample] = encode(encoder, chat)
    text, target = said(encoder, sample)
    assert text == "".join(f"<|im_start|>{role}\n{text}{EODS}\n" for role, text in turns)[:-1]
    assert sample.straddling == 0 or len(target) > len("".join(answers))
    if sample.straddling == 0:
        assert target == "".join(answers)
    assert sample.target_mask()[-1] == (turns[-1][0] == "assistant")


def test_a_user_who_speaks_last_gets_no_trained_end():
    encoder = Encoder(tokenizer=BYTES, shape=CHAT, targets="assistant", template=load_template("chatml", BYTES))
    chat = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "u"}]
    cut, whole = encode(encoder, Chat(chat), Chat(chat[:1]))
    assert not cut.target_mask()[-1]
    assert whole.target_mask()[-1]


def test_pairs_with_a_template_become_turns(chatml_tokenizer: Tokenizer):
    plain = ChatTemplate(source=CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", ""))
    as_messages = Pair([{"role": "user", "content": "fox"}], [{"role": "assistant", "content": "the"}])
    for template, targets in itertools.product(
        (plain, load_template("chatml", chatml_tokenizer)), ("completion", "assistant")
    ):
        encoder = Encoder(tokenizer=chatml_tokenizer, shape=PAIR, targets=targets, template=template)
        for sample in encode(encoder, Pair("fox", "the"), as_messages):
            text, target = said(encoder, sample)
            assert text == f"<|im_start|>user\nfox{EODS}\n<|im_start|>assistant\nthe{EODS}"
            assert target == f"the{EODS}"
    assert "need a chat template" in refusal(Encoder(tokenizer=BYTES, shape=PAIR), as_messages)


def naive_ids(ids: list[int], mask: list[bool] | None) -> tuple[list[int], list[bool]]:
    """The EOD rule for tokens that come ready, one token at a time."""
    mask = [True] * len(ids) if mask is None else list(mask)
    ids = list(ids)
    ended = bool(ids) and ids[-1] == EOD
    while len(ids) > 1 and ids[-1] == ids[-2] == EOD:
        ids.pop(), mask.pop()
    if not ended:
        ids, mask = [*ids, EOD], [*mask, mask[-1]]
    mask[0] = False
    return ids, mask


@settings(max_examples=100, deadline=None)
@given(
    tokens=st.lists(st.tuples(st.sampled_from([1, 2, EOD]), st.booleans()), min_size=1, max_size=9),
    masked=st.booleans(),
)
def test_ready_tokens_keep_their_targets_and_end_once(tokens: list, masked: bool):
    ids = [token for token, _ in tokens]
    mask = [False, *(target for _, target in tokens[1:])] if masked else None
    expected_ids, expected_mask = naive_ids(ids, mask)
    encoder = Encoder(tokenizer=BYTES, shape=LABELLED if masked else BARE)
    record = Ids(np.array(ids), None if mask is None else np.array(mask))
    if not any(expected_mask):
        assert "no target" in refusal(encoder, record)
        return
    [sample] = encode(encoder, record)
    assert sample.ids.tolist() == expected_ids
    assert sample.target_mask().tolist() == expected_mask
    assert (sample.spans is None) == (mask is None)
    assert sample.surplus_eod == max(len(ids) - len(expected_ids), 0)


@pytest.mark.parametrize("wrong", [-1, 257, 2**40])
def test_ids_outside_the_vocabulary_are_refused(wrong: int):
    message = refusal(Encoder(tokenizer=BYTES, shape=BARE), Ids(np.array([1, wrong]), None))
    assert f"token 1 has the id {wrong}, outside the vocabulary of bytes (0 to 256)" in message


@pytest.mark.parametrize(
    ("shape", "targets", "template", "message"),
    [
        (TEXT, "completion", False, "plain text has no prompt"),
        (TEXT, "all", True, "renders messages or pairs"),
        (CHAT, "all", False, "messages need a chat template"),
        (CHAT, "completion", True, "messages have no completion; use assistant"),
        (PAIR, "assistant", False, "without a chat template there are no turns"),
        (BARE, "completion", False, "neither labels nor loss_mask"),
        (PAIR, "some", False, "targets are one of all, completion, assistant; got 'some'"),
    ],
)
def test_what_does_not_go_together_is_refused_at_once(shape: Shape, targets, template: bool, message: str):
    with pytest.raises(PadlessError, match=message):
        Encoder(
            tokenizer=BYTES, shape=shape, targets=targets, template=load_template("chatml", BYTES) if template else None
        )


def test_a_tokenizer_without_eod_is_refused_at_once(tmp_path: Path):
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path))
    with pytest.raises(PadlessError, match="has no EOD token"):
        Encoder(tokenizer=tokenizer, shape=TEXT)
    assert encode(Encoder(tokenizer=tokenizer, shape=TEXT, add_eod=False), "b b")


def test_bad_records_keep_their_place_and_the_rest_goes_on(tmp_path: Path):
    lines = ['{"text": "one"}', "broken", '{"text": 3}', '{"text": "four"}', '{"other": 1}', "", '{"text": " "}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    [source] = find_sources([tmp_path / "a.jsonl"])
    [batch] = read_raw(source)
    out = Encoder(tokenizer=BYTES, shape=TEXT).encode(batch)
    assert [item.number for item in out] == [1, 2, 3, 4, 5, 7]
    assert [isinstance(item, BadRecord) for item in out] == [False, True, True, False, True, True]
    assert [str(item).partition(": ")[0] for item in out if isinstance(item, BadRecord)] == [
        f"{source.name}:{number}" for number in (2, 3, 5, 7)
    ]
    no_answer = [{"messages": [{"role": "user", "content": "x"}]}] * 2
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(record) + "\n" for record in no_answer))
    [batch] = read_raw(find_sources([tmp_path / "b.jsonl"])[0])
    chat = Encoder(tokenizer=BYTES, shape=CHAT, targets="assistant", template=load_template("chatml", BYTES))
    assert [item.number for item in chat.encode(batch)] == [1, 2]


def test_gsm8k_with_an_assistants_template_gives_every_text_and_exactly_its_answers(shared_data: Path, tmp_path: Path):
    [source] = find_sources([shared_data / "text" / "gsm8k_train.jsonl"])
    records = [record.fields for batch in read_raw(source) for record in batch.records()]
    tokenizer = train(tmp_path, [record["question"] + record["answer"] for record in records[:1000]])
    shape = detect_shape(first_record([source]).fields)
    for targets in ("completion", "assistant"):
        encoder = Encoder(
            tokenizer=tokenizer, shape=shape, targets=targets, template=load_template("chatml", tokenizer)
        )
        samples = [sample for batch in read_raw(source) for sample in encoder.encode(batch)]
        assert len(samples) == len(records) == 7473
        for sample, record in zip(samples, records, strict=True):
            text, target = said(encoder, sample)
            question, answer = record["question"], record["answer"]
            assert text == f"<|im_start|>user\n{question}{EODS}\n<|im_start|>assistant\n{answer}{EODS}"
            assert target == answer + EODS
            assert sample.straddling == 0


def test_batches_and_processes_do_not_change_a_sample(shared_data: Path, monkeypatch: pytest.MonkeyPatch):
    [source] = find_sources([shared_data / "text" / "gsm8k_train.jsonl"])
    encoder = Encoder(tokenizer=BYTES, shape=detect_shape(first_record([source]).fields), targets="completion")

    def run(encoder: Encoder) -> list[tuple]:
        batches = itertools.islice(read_raw(source), 3)
        samples = [sample for batch in batches for sample in encoder.encode(batch)][:400]
        return [(sample.number, sample.ids.tolist(), sample.spans) for sample in samples]

    whole = run(encoder)
    monkeypatch.setattr("padless.corpus.sources.lines.BATCH_RECORDS", 7)
    monkeypatch.setattr("padless.corpus.sources.lines.BATCH_BYTES", 1 << 17)
    small = run(pickle.loads(pickle.dumps(encoder)))
    assert small == whole[: len(small)]
    assert len(small) == 21
