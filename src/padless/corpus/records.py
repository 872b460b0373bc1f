"""The shapes of records: found by themselves, and turned into what the encoder takes.

| shape | fields | becomes |
|---|---|---|
| text | `text` | `str` |
| pair | `prompt` + `completion`, strings or messages | `Pair` |
| messages | `messages` or `conversations`, role/content or from/value | `Chat` |
| ids | `input_ids`, with `labels` or `loss_mask`, and `attention_mask` | `Ids` |
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from padless.errors import PadlessError

__all__ = ["Chat", "Ids", "Pair", "Parsed", "RecordError", "Shape", "detect_shape", "parse"]

TEXT_FIELDS = ("text",)
CHAT_FIELDS = ("messages", "conversations")
PAIR_FIELDS = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("question", "answer"),
    ("instruction", "output"),
    ("instruction", "response"),
)
IDS_FIELDS = ("input_ids",)
NO_LABEL = -100

_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}
_ACCEPTED = (
    "accepted are text (a string); messages or conversations (a list of role/content or from/value); prompt + "
    "completion, question + answer or instruction + output (strings or messages); input_ids (with labels or "
    "loss_mask); or name the field, or two fields as PROMPT,COMPLETION"
)

Message = dict[str, Any]


class RecordError(PadlessError):
    """This record does not have the shape of the others."""


class Pair(NamedTuple):
    """A prompt and its completion: two strings, or two lists of messages."""

    prompt: str | list[Message]
    completion: str | list[Message]


class Chat(NamedTuple):
    """Messages with `role` and `content`, and the tools that the template may name."""

    messages: list[Message]
    tools: list[Any] | None = None


class Ids(NamedTuple):
    """Tokens made by someone else. `mask` says which are targets; None: all but the first."""

    ids: np.ndarray
    mask: np.ndarray | None


Parsed = str | Pair | Chat | Ids


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the records of a corpus look like.

    Attributes:
        kind: Which of the four.
        fields: The fields that hold it: one, or prompt and completion.
        extras: Fields read beside them when a record has them.
    """

    kind: Literal["text", "pair", "messages", "ids"]
    fields: tuple[str, ...]
    extras: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Every field that is read; all others of a table can stay unread."""
        return self.fields + self.extras

    def __str__(self) -> str:
        return f"{self.kind} ({' + '.join(self.columns if self.kind == 'ids' else self.fields)})"


def detect_shape(record: Mapping[str, Any], wanted_field: str | None = None) -> Shape:
    """Which shape a record has; tokens win over messages, messages over pairs, pairs over text.

    Args:
        record: The fields of one record.
        wanted_field: The field to use whatever else is there, or `"PROMPT,COMPLETION"` for a pair.

    Raises:
        PadlessError: When no shape fits; the fields that were seen are listed.

    Example:
        >>> str(detect_shape({"id": 7, "prompt": "1 + 1 =", "completion": " 2"}))
        'pair (prompt + completion)'
        >>> str(detect_shape({"body": "Once upon a time"}, "body"))
        'text (body)'
    """
    if wanted_field is not None:
        return _named(record, [name.strip() for name in wanted_field.split(",")])
    if "input_ids" in record:
        return _ids_shape(record, "input_ids")
    for name in CHAT_FIELDS:
        if name in record:
            return Shape(kind="messages", fields=(name,), extras=("tools",))
    for pair in PAIR_FIELDS:
        if all(name in record for name in pair):
            if pair[0] == "instruction" and record.get("input"):
                raise PadlessError(
                    "the record has an `input` beside `instruction`, and how the two become a prompt is not known "
                    "here; write them into one `prompt` field"
                )
            extras = ("input",) if pair[0] == "instruction" else ()
            return Shape(kind="pair", fields=pair, extras=extras)
    if "text" in record:
        return Shape(kind="text", fields=("text",))
    raise PadlessError(f"the record has an unknown shape: its fields are {_seen(record)}; {_ACCEPTED}")


def parse(record: Mapping[str, Any], shape: Shape) -> Parsed:
    """The record as the encoder takes it.

    Raises:
        RecordError: When a field is missing, has another type, or holds nothing.
    """
    return _PARSERS[shape.kind](record, shape)


def _named(record: Mapping[str, Any], names: list[str]) -> Shape:
    missing = [name for name in names if name not in record]
    if missing or len(names) > 2:
        lacking = f"has no field {missing[0]!r}" if missing else "takes one field, or two for prompt and completion"
        raise PadlessError(f"the record {lacking}; its fields are {_seen(record)}")
    if len(names) == 2:
        return Shape(kind="pair", fields=tuple(names))
    name, value = names[0], record[names[0]]
    if isinstance(value, str):
        return Shape(kind="text", fields=(name,))
    if isinstance(value, np.ndarray) or (isinstance(value, list) and value and isinstance(value[0], int)):
        return _ids_shape(record, name)
    if isinstance(value, list):
        return Shape(kind="messages", fields=(name,), extras=("tools",))
    raise PadlessError(f"the field {name!r} is {_kind(value)}; {_ACCEPTED}")


def _ids_shape(record: Mapping[str, Any], name: str) -> Shape:
    masks = [field for field in ("labels", "loss_mask") if field in record]
    if len(masks) > 1:
        raise PadlessError("the record has both labels and loss_mask; keep the one that says what to train on")
    padding = [field for field in ("attention_mask",) if field in record]
    return Shape(kind="ids", fields=(name,), extras=tuple(masks + padding))


def _get(record: Mapping[str, Any], name: str) -> Any:
    try:
        return record[name]
    except KeyError:
        raise RecordError(f"the field {name!r} is missing; the record has {_seen(record)}") from None


def _text(record: Mapping[str, Any], shape: Shape) -> str:
    return _full_string(_get(record, shape.fields[0]), shape.fields[0])


def _full_string(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise RecordError(f"{name!r} is {_kind(value)}, expected a string")
    if not value or value.isspace():
        raise RecordError(f"{name!r} is empty: there is nothing to train on")
    return value


def _pair(record: Mapping[str, Any], shape: Shape) -> Pair:
    prompt, completion = _get(record, shape.fields[0]), _get(record, shape.fields[1])
    if shape.extras and record.get(shape.extras[0]):
        raise RecordError("the record has an `input` beside `instruction`; write them into one `prompt` field")
    if isinstance(prompt, str):
        return Pair(prompt, _full_string(completion, shape.fields[1]))
    if isinstance(prompt, list) and isinstance(completion, list):
        return Pair(_messages(prompt, shape.fields[0]), _messages(completion, shape.fields[1]))
    raise RecordError(
        f"{shape.fields[0]!r} is {_kind(prompt)} and {shape.fields[1]!r} is {_kind(completion)}; expected two strings "
        f"or two lists of messages"
    )


def _chat(record: Mapping[str, Any], shape: Shape) -> Chat:
    tools = record.get("tools")
    if isinstance(tools, str):
        try:
            tools = msgspec.json.decode(tools)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise RecordError(f"'tools' is a string that is not JSON: {error}") from None
    if tools is not None and not isinstance(tools, list):
        raise RecordError(f"'tools' is {_kind(tools)}, expected a list")
    return Chat(_messages(_get(record, shape.fields[0]), shape.fields[0]), tools or None)


def _messages(value: Any, name: str) -> list[Message]:
    if not isinstance(value, list):
        raise RecordError(f"{name!r} is {_kind(value)}, expected a list of messages")
    if not value:
        raise RecordError(f"{name!r} is empty: there is nothing to train on")
    return [_message(item, f"{name}[{i}]") for i, item in enumerate(value)]


def _message(item: Any, name: str) -> Message:
    """A message as role and content; a table's absent fields, which come as None, are left out."""
    if not isinstance(item, dict):
        raise RecordError(f"{name} is {_kind(item)}, expected a message with role and content")
    if "role" not in item and "from" in item:
        role, content, rest = item["from"], item.get("value"), {}
        role = _ROLES.get(role, role) if isinstance(role, str) else role
    else:
        role, content = item.get("role"), item.get("content")
        rest = {key: value for key, value in item.items() if value is not None and key not in ("role", "content")}
    if not isinstance(role, str) or not role:
        raise RecordError(f"{name} has no role; its fields are {_seen(item)}")
    if not isinstance(content, str | list) and not (content is None and rest):
        raise RecordError(f"{name} ({role}): the content is {_kind(content)}, expected a string")
    return {"role": role, "content": content, **rest}


def _ids(record: Mapping[str, Any], shape: Shape) -> Ids:
    ids = _whole_numbers(_get(record, shape.fields[0]), shape.fields[0])
    mask = None
    for name in shape.extras:
        column = _whole_numbers(_get(record, name), name)
        if len(column) != len(ids):
            raise RecordError(f"{name!r} has {len(column)} entries for {len(ids)} tokens; expected one per token")
        if name == "attention_mask":
            ids, mask = _real_part(ids, mask, column)
        else:
            mask = _targets(ids, column, name)
    if not len(ids):
        raise RecordError(f"{shape.fields[0]!r} is empty: there is nothing to train on")
    return Ids(ids, mask)


def _targets(ids: np.ndarray, column: np.ndarray, name: str) -> np.ndarray:
    if name == "labels":
        mask = column != NO_LABEL
        wrong = np.flatnonzero(mask & (column != ids))
        if len(wrong):
            at = int(wrong[0])
            raise RecordError(
                f"labels[{at}] is {int(column[at])} where input_ids[{at}] is {int(ids[at])}: labels are unshifted "
                f"here, each is its own token or {NO_LABEL}"
            )
    else:
        mask = column == 1
        if not np.all(mask | (column == 0)):
            raise RecordError("'loss_mask' holds other numbers than 0 and 1")
    mask[:1] = False
    return mask


def _real_part(ids: np.ndarray, mask: np.ndarray | None, attention: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Without the padding that `attention_mask` marks at either end."""
    real = np.flatnonzero(attention)
    if not len(real):
        raise RecordError("'attention_mask' marks every token as padding")
    first, end = int(real[0]), int(real[-1]) + 1
    if end - first != len(real):
        raise RecordError("'attention_mask' has a hole: padding is only removed from the ends")
    if mask is not None:
        mask = mask[first:end].copy()
        mask[:1] = False
    return ids[first:end], mask


def _whole_numbers(value: Any, name: str) -> np.ndarray:
    try:
        numbers = np.asarray(value)
    except (ValueError, OverflowError):
        numbers = np.empty(0, object)
    if isinstance(value, list) and not value:
        return np.zeros(0, np.int64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iub":
        raise RecordError(f"{name!r} is {_kind(value)}, expected a list of whole numbers")
    return numbers.astype(np.int64)


def _seen(record: Mapping[str, Any]) -> str:
    names = [str(name) for name in record]
    shown = ", ".join(names[:12]) or "none"
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown


def _kind(value: Any) -> str:
    names = {str: "a string", list: "a list", dict: "an object", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


_PARSERS = {"text": _text, "pair": _pair, "messages": _chat, "ids": _ids}
