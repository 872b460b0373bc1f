"""Chat templates: the text is what Transformers renders, and what the assistant wrote is found or refused."""

import datetime
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.corpus.records import Chat, RecordError
from padless.corpus.templates import CHATML, ChatTemplate, load_template
from padless.corpus.tokenizers import load_tokenizer
from padless.errors import PadlessError

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
PLAIN = CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", "")


def messages(*turns: str) -> list[dict]:
    """`u:hello` is a user's turn, `a:` the assistant's, `s:` the system's."""
    roles = {"u": "user", "a": "assistant", "s": "system"}
    return [{"role": roles[turn[0]], "content": turn[2:]} for turn in turns]


DIALOGUE = messages("u:Hello \u00e9", "a:Hi there\n", "u:And?", "a: So.")


def targets(template: ChatTemplate, chat: Chat) -> list[str]:
    text, spans = template.assistant_spans(chat)
    assert text == template.render(chat)
    return [text[first:end] for first, end in spans]


@pytest.mark.interop
def test_real_templates_render_as_in_transformers_and_mark_the_same():
    import trl
    from transformers.utils.chat_template_utils import render_jinja_template

    today = datetime.date.today().isoformat()
    compared = marked = 0
    for path in sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja")):
        source = path.read_text("utf-8")
        template = ChatTemplate(source=source, special=SPECIAL, date=today)
        marks = template.marks_generation
        try:
            [text], spans = render_jinja_template(
                [DIALOGUE], chat_template=source, return_assistant_tokens_mask=marks, **SPECIAL
            )
            assert all(message["content"].strip() in text for message in DIALOGUE), "made for lists of parts"
        except Exception:  # noqa: BLE001 - whatever Transformers cannot render either
            with pytest.raises(RecordError):
                template.assistant_spans(Chat(DIALOGUE))
            continue
        compared += 1
        assert template.render(Chat(DIALOGUE)) == text, path.name
        if marks:
            marked += 1
            assert template.assistant_spans(Chat(DIALOGUE)) == (text, [tuple(span) for span in spans[0]]), path.name
    assert compared > 40
    assert marked > 20


turn_texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
dialogues = st.lists(st.tuples(st.sampled_from("uas"), turn_texts), min_size=1, max_size=6).map(
    lambda turns: Chat(messages(*(f"{who}:{text}" for who, text in turns)))
)


@settings(max_examples=80, deadline=None)
@given(chat=dialogues)
def test_marks_and_prefixes_find_the_same_turns(chat: Chat):
    said = [message["content"] + "<|im_end|>" for message in chat.messages if message["role"] == "assistant"]
    assert targets(ChatTemplate(source=CHATML), chat) == said
    assert targets(ChatTemplate(source=PLAIN), chat) == [text + "\n" for text in said]


def test_a_completion_is_what_follows_the_prompt():
    template = ChatTemplate(source=PLAIN)
    prompt = DIALOGUE[:3]
    text, [(first, end)] = template.completion_span(prompt, Chat(DIALOGUE))
    assert text[first:end] == " So.<|im_end|>\n"
    assert text[:first] == template.render(Chat(prompt), add_generation_prompt=True)
    several = messages("a:one", "u:two", "a:three")
    text, [(first, end)] = template.completion_span(DIALOGUE[:1], Chat(DIALOGUE[:1] + several))
    assert text[first:end].startswith("one<|im_end|>\n<|im_start|>user\ntwo")


FORGETFUL = (  # like templates that leave earlier reasoning out
    "{% for m in messages %}[{{ m.role }}]"
    "{{ m.content if loop.last or m.role == 'user' else m.content[:1] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
THINKING = PLAIN.replace("assistant\\n' }}{% endif %}", "assistant\\n<think>' }}{% endif %}")


@pytest.mark.parametrize(("source", "turn"), [(FORGETFUL, 1), (THINKING, 1)])
def test_renderings_that_do_not_continue_each_other_are_refused_with_the_turn(source: str, turn: int):
    with pytest.raises(RecordError, match=rf"turn {turn} \(assistant\).*from character \d+ on.*generation"):
        ChatTemplate(source=source).assistant_spans(Chat(DIALOGUE))
    assert ChatTemplate(source=source).render(Chat(DIALOGUE))


def test_blocks_in_a_macro_are_found_and_those_that_are_changed_afterwards_refused():
    macro = "{% macro say(m) %}[{% generation %}{{ m.content }}{% endgeneration %}]{% endmacro %}"
    each = "{% for m in messages %}{{ say(m) }}{% endfor %}"
    chat = Chat(messages("u:abc", "a: d "))
    assert targets(ChatTemplate(source=macro + each), chat) == ["abc", " d "]
    changed = macro + "{% for m in messages %}{{ say(m)[1:] if say(m)|length == 5 else say(m) }}{% endfor %}"
    with pytest.raises(RecordError, match="changes what its"):
        ChatTemplate(source=changed).assistant_spans(chat)


@pytest.mark.parametrize("text", ["a\ufdd0b", "a\ufdd1b", "\ufdd1\ufdd0"])
def test_texts_with_the_marks_in_them_are_refused(text: str):
    with pytest.raises(RecordError, match="U\\+FDD0"):
        ChatTemplate(source=CHATML).assistant_spans(Chat(messages(f"u:{text}", "a:x")))


def test_nested_blocks_are_refused():
    nested = "{% generation %}a{% generation %}b{% endgeneration %}{% endgeneration %}{{ messages[0].content }}"
    with pytest.raises(RecordError, match="inside each other"):
        ChatTemplate(source=nested).assistant_spans(Chat(messages("u:x")))


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception('roles must alternate') }}",
        "{% for i in range(10000000) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 1 / 0 }}",
        "{{ strftime_now('%Y') }}",
        "{% include 'other' %}",
    ],
)
def test_templates_are_sandboxed_and_their_failures_are_records_errors(source: str):
    chat = Chat(messages("u:x"))
    with pytest.raises(RecordError, match="the chat template"):
        ChatTemplate(source=source).assistant_spans(chat)
    assert chat == Chat(messages("u:x"))


def test_a_template_that_wants_parts_does_not_lose_strings_silently():
    parts = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
    with pytest.raises(RecordError, match="leaves out what the assistant says"):
        ChatTemplate(source=parts).render(Chat(DIALOGUE))
    listed = [{"role": "assistant", "content": [{"type": "text", "text": "seen"}]}]
    assert ChatTemplate(source=parts).render(Chat(listed)) == "seen"


def test_the_date_is_given_and_never_todays():
    date = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% else %}no date{% endif %}"
    dated = date + "{{ messages[0].content }}"
    chat = Chat(messages("u:."))
    assert ChatTemplate(source=dated).render(chat) == "no date."
    assert ChatTemplate(source=dated, date="2024-07-26").render(chat) == "26 Jul 2024."
    with pytest.raises(PadlessError, match="no date; expected YYYY-MM-DD"):
        ChatTemplate(source=dated, date="tomorrow")
    with pytest.raises(RecordError, match="set a template date"):
        ChatTemplate(source="{{ strftime_now('%Y') }}").render(chat)


def test_helpers_that_templates_expect_are_there():
    source = (
        "{{ tools | tojson }}{{ tools | tojson(indent=1) }}{{ bos_token }}{{ documents is none }}"
        "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}"
    )
    text = ChatTemplate(source=source, special=SPECIAL).render(Chat(messages("u:a", "s:b"), [{"n": "<\u00e9>"}]))
    assert text == '[{"n": "<\u00e9>"}][\n {\n  "n": "<\u00e9>"\n }\n]<s>Truea'


def test_templates_are_loaded_by_name_file_or_tokenizer(tmp_path: Path):
    tokenizer = load_tokenizer("bytes")
    with pytest.raises(PadlessError, match="bytes has no chat template; give one"):
        load_template(None, tokenizer)
    with pytest.raises(PadlessError, match=r"cannot read the chat template .*none\.jinja"):
        load_template(str(tmp_path / "none.jinja"), tokenizer)
    (tmp_path / "own.jinja").write_text("{{ eos_token }}{{ messages[0].content }}")
    own = load_template(str(tmp_path / "own.jinja"), tokenizer)
    assert own.render(Chat(messages("u:x"))) == "<eod>x"
    (tmp_path / "own.jinja").write_text("{% for %}")
    with pytest.raises(PadlessError, match="the chat template is broken in line 1"):
        load_template(str(tmp_path / "own.jinja"), tokenizer)
    again = pickle.loads(pickle.dumps(own))
    assert again == own
    assert again.fingerprint == own.fingerprint != load_template("chatml", tokenizer).fingerprint


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"content": None}, "no text"),
        ({"content": "", "tool_calls": [{"function": {"name": "w"}}]}, "tool calls"),
        ({"content": [{"type": "text", "text": "hi"}]}, "content parts"),
    ],
)
def test_chatml_says_what_it_cannot_write(message: dict, said: str):
    chat = Chat([{"role": "user", "content": "x"}, {"role": "assistant", **message}])
    with pytest.raises(
        RecordError, match=rf"message 2 \(assistant\) holds {said}; give the chat template of your model"
    ):
        ChatTemplate(source=CHATML).assistant_spans(chat)
