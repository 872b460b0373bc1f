"""Shapes found by themselves, and records that do not fit them."""

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.corpus.records import Chat, Ids, Pair, RecordError, Shape, detect_shape, parse
from padless.errors import PadlessError

USER, ASSISTANT = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("record", "wanted", "shape"),
    [
        ({"text": "a", "meta": 1}, None, "text (text)"),
        ({"messages": [USER], "text": "a"}, None, "messages (messages)"),
        ({"conversations": []}, None, "messages (conversations)"),
        ({"prompt": "a", "completion": "b"}, None, "pair (prompt + completion)"),
        ({"question": "a", "answer": "b"}, None, "pair (question + answer)"),
        ({"instruction": "a", "input": "", "output": "b"}, None, "pair (instruction + output)"),
        ({"input_ids": [1], "labels": [1], "text": "a"}, None, "ids (input_ids + labels)"),
        (
            {"input_ids": [1], "loss_mask": [1], "attention_mask": [1]},
            None,
            "ids (input_ids + loss_mask + attention_mask)",
        ),
        ({"body": "a", "text": "b"}, "body", "text (body)"),
        ({"a": "x", "b": "y"}, "a, b", "pair (a + b)"),
        ({"chat": [USER]}, "chat", "messages (chat)"),
        ({"tokens": [1, 2]}, "tokens", "ids (tokens)"),
        ({"tokens": np.arange(2)}, "tokens", "ids (tokens)"),
    ],
)
def test_shapes_are_found(record: dict, wanted: str | None, shape: str):
    assert str(detect_shape(record, wanted)) == shape


@pytest.mark.parametrize(
    ("record", "wanted", "message"),
    [
        ({"url": "x", "body": "y"}, None, r"its fields are url, body; accepted are text \(a string\)"),
        ({}, None, "its fields are none"),
        ({str(i): i for i in range(20)}, None, "11 and 8 more"),
        ({"text": "a"}, "body", "has no field 'body'; its fields are text"),
        ({"a": "x", "b": "y", "c": "z"}, "a,b,c", "two for prompt and completion"),
        ({"a": 3}, "a", "is a number; accepted are"),
        ({"instruction": "a", "input": "b", "output": "c"}, None, "an `input` beside `instruction`"),
        ({"input_ids": [1], "labels": [1], "loss_mask": [1]}, None, "both labels and loss_mask"),
    ],
)
def test_an_unknown_shape_lists_what_is_there(record: dict, wanted: str | None, message: str):
    with pytest.raises(PadlessError, match=message):
        detect_shape(record, wanted)


def parsed(record: dict, like: dict | None = None):
    return parse(record, detect_shape(like or record))


def test_both_dialects_of_chat_become_one():
    chat = {"messages": [USER, {**ASSISTANT, "name": "x", "tool_calls": None}]}
    assert parsed(chat) == Chat([USER, {**ASSISTANT, "name": "x"}])
    turns = [("system", "s"), ("human", "q"), ("gpt", "a"), ("observation", "o")]
    conversations = [{"from": who, "value": said} for who, said in turns]
    roles = [message["role"] for message in parsed({"conversations": conversations}).messages]
    assert roles == ["system", "user", "assistant", "observation"]
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    with_tools = parsed({"messages": [USER, call], "tools": json.dumps([{"name": "f"}])})
    assert with_tools == Chat([USER, call], [{"name": "f"}])
    assert parsed({"prompt": [USER], "completion": [ASSISTANT]}) == Pair([USER], [ASSISTANT])


@pytest.mark.parametrize(
    ("like", "record", "message"),
    [
        ("text", {}, "'text' is missing; the record has none"),
        ("text", {"text": None}, "is null, expected a string"),
        ("text", {"text": 3}, "is a number"),
        ("text", {"text": ""}, "empty"),
        ("text", {"text": " \n"}, "empty"),
        ("pair", {"prompt": "a", "completion": ""}, "'completion' is empty"),
        ("pair", {"prompt": "a", "completion": [ASSISTANT]}, "'completion' is a list, expected a string"),
        ("pair", {"prompt": [USER], "completion": "a"}, "'prompt' is a list and 'completion' is a string"),
        ("pair", {"prompt": "a"}, "'completion' is missing"),
        ("messages", {"messages": []}, "'messages' is empty"),
        ("messages", {"messages": "hi"}, "a string, expected a list"),
        ("messages", {"messages": ["hi"]}, r"messages\[0\] is a string"),
        ("messages", {"messages": [USER, {"content": "x"}]}, r"messages\[1\] has no role; its fields are content"),
        (
            "messages",
            {"messages": [{"role": "user", "content": 3}]},
            r"messages\[0\] \(user\): the content is a number",
        ),
        ("messages", {"messages": [{"role": "user"}]}, "the content is null"),
        ("messages", {"messages": [USER], "tools": "{"}, "'tools' is a string that is not JSON"),
        ("messages", {"messages": [USER], "tools": 3}, "'tools' is a number"),
        ("ids", {"input_ids": [], "labels": []}, "empty"),
        ("ids", {"input_ids": "abc", "labels": []}, "a string, expected a list of whole numbers"),
        ("ids", {"input_ids": [1.5], "labels": [1]}, "expected a list of whole numbers"),
        ("ids", {"input_ids": [1, None], "labels": [1, 1]}, "expected a list of whole numbers"),
        ("ids", {"input_ids": [[1], [1, 2]], "labels": [1, 1]}, "expected a list of whole numbers"),
        ("ids", {"input_ids": [10**30], "labels": [1]}, "expected a list of whole numbers"),
        ("ids", {"input_ids": [1, 2], "labels": [1]}, "'labels' has 1 entries for 2 tokens"),
        ("ids", {"input_ids": [1, 2, 3], "labels": [2, 3, -100]}, r"labels\[0\] is 2 where input_ids\[0\] is 1"),
        ("mask", {"input_ids": [1, 2], "loss_mask": [0, 2]}, "other numbers than 0 and 1"),
        ("padded", {"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}, "has a hole"),
        ("padded", {"input_ids": [1], "attention_mask": [0]}, "every token as padding"),
    ],
)
def test_a_record_that_does_not_fit_says_why(like: str, record: dict, message: str):
    shapes = {
        "text": Shape(kind="text", fields=("text",)),
        "pair": Shape(kind="pair", fields=("prompt", "completion")),
        "messages": Shape(kind="messages", fields=("messages",), extras=("tools",)),
        "ids": Shape(kind="ids", fields=("input_ids",), extras=("labels",)),
        "mask": Shape(kind="ids", fields=("input_ids",), extras=("loss_mask",)),
        "padded": Shape(kind="ids", fields=("input_ids",), extras=("attention_mask",)),
    }
    with pytest.raises(RecordError, match=message):
        parse(record, shapes[like])


@settings(max_examples=50, deadline=None)
@given(
    tokens=st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), min_size=1, max_size=12),
    left=st.integers(0, 3),
)
def test_labels_and_masks_say_the_same_and_padding_goes(tokens: list, left: int):
    ids, mask = [token for token, _, _ in tokens], [target for _, target, _ in tokens]
    labels = [token if target else -100 for token, target in zip(ids, mask, strict=True)]
    by_labels = parsed({"input_ids": ids, "labels": labels})
    by_mask = parsed({"input_ids": np.array(ids, np.uint8), "loss_mask": np.array(mask)})
    real = [0] * left + [1] * len(ids) + [0] * 2
    padded = {
        "input_ids": [7] * left + ids + [7, 7],
        "attention_mask": real,
        "labels": [-100] * left + labels + [-100] * 2,
    }
    for found in (by_labels, by_mask, parsed(padded)):
        assert isinstance(found, Ids)
        assert found.ids.tolist() == ids
        assert found.mask.tolist() == [False, *mask[1:]]
    assert parsed({"input_ids": ids}).mask is None


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "from", "value", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
names = st.sampled_from(["text", "messages", "tools", "prompt", "completion", "input_ids", "labels", "attention_mask"])


@settings(max_examples=200, deadline=None)
@given(like=st.dictionaries(names, anything, max_size=5), record=st.dictionaries(names, anything, max_size=5))
def test_whatever_a_record_holds_only_clear_errors_come(like: dict, record: dict):
    try:
        shape = detect_shape(like)
    except PadlessError:
        return
    for fields in (like, record):
        with contextlib.suppress(RecordError):
            assert isinstance(parse(fields, shape), str | Pair | Chat | Ids)
