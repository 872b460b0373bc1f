"""Chat templates: messages to text, and which of the text the assistant wrote.

Templates are programs from strangers, so they run in jinja's immutable sandbox, with the helpers that templates on the
hub expect. Nothing in them sees the clock: a template that asks for today's date gets the date that was set, or fails,
because tokens that depend on the day of packing could not be made again.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date as calendar_date
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from padless.corpus.records import Chat, Message, RecordError
from padless.corpus.spans import Span
from padless.corpus.tokenizers import Tokenizer
from padless.errors import PadlessError

__all__ = ["CHATML", "ChatTemplate", "load_template"]

CHATML = (
    "{% for message in messages %}"
    "{% if message.content is not string or message.tool_calls %}"
    "{{ raise_exception('chatml writes plain text, and message ' ~ loop.index ~ ' (' ~ message.role ~ ') holds '"
    " ~ ('tool calls' if message.tool_calls else 'no text' if message.content is none else 'content parts')"
    " ~ '; give the chat template of your model') }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\\n' }}"
    "{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message.content + '<|im_end|>' }}{% endif %}"
    "{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Unicode keeps these two for programs' own use: no text is written with them, and a text that holds them is refused.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """A chat template and what it may see.

    Attributes:
        source: Jinja source, as in a tokenizer's `chat_template`.
        special: Special tokens that the template may name, e.g. `bos_token`.
        date: What `strftime_now` formats, as YYYY-MM-DD; None leaves it undefined.

    Raises:
        PadlessError: When the source is no template or the date is no date.

    Example:
        >>> chat = Chat([{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}])
        >>> text, spans = ChatTemplate(source=CHATML).assistant_spans(chat)
        >>> [text[first:end] for first, end in spans]
        ['4<|im_end|>']
    """

    source: str
    special: dict[str, str] = field(default_factory=dict)
    date: str | None = None

    def __post_init__(self) -> None:
        self._program  # noqa: B018 - a broken template must fail here, not at the first record

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "special": self.special, "date": self.date}

    @property
    def fingerprint(self) -> str:
        """sha256 of the source and of what it may see."""
        seen = json.dumps([self.source, self.special, self.date], sort_keys=True)
        return hashlib.sha256(seen.encode()).hexdigest()

    @property
    def marks_generation(self) -> bool:
        """Whether the template itself says what the assistant writes, with `{% generation %}`."""
        return self._program.marks

    def render(self, chat: Chat, *, add_generation_prompt: bool = False) -> str:
        """The text of the messages.

        Raises:
            RecordError: When the template refuses the messages or fails on them.
        """
        return self._render(self._program.plain, chat, add_generation_prompt)

    def assistant_spans(self, chat: Chat) -> tuple[str, list[Span]]:
        """The text, and what the assistant wrote in it as `(first, end)` characters, in order.

        With `{% generation %}` in the template these are its blocks. Otherwise each assistant turn is what the
        template adds after the messages before it and the generation prompt, and this is only accepted when each
        rendering is the beginning of the next.

        Raises:
            RecordError: When the template fails, or the renderings do not continue each other; the turn is named.
        """
        if self.marks_generation:
            return self._marked(chat)
        text = self.render(chat)
        turns = [i for i, message in enumerate(chat.messages) if message["role"] == "assistant"]
        return text, [self._turn(chat, text, i, i + 1) for i in turns]

    def completion_span(self, prompt: list[Message], chat: Chat) -> tuple[str, list[Span]]:
        """The text of all messages, and the part after `prompt`, which are its first ones.

        Raises:
            RecordError: As in `assistant_spans`.
        """
        text = self.render(chat)
        return text, [self._turn(chat, text, len(prompt), len(chat.messages))]

    def _turn(self, chat: Chat, text: str, first: int, end: int) -> Span:
        """Characters of messages `first` to `end` by rendering the messages before and up to them."""
        asked = chat.messages[first]["role"] == "assistant"
        before = self.render(Chat(chat.messages[:first], chat.tools), add_generation_prompt=asked)
        through = text if end == len(chat.messages) else self.render(Chat(chat.messages[:end], chat.tools))
        for shorter, longer, what in ((before, through, "with it"), (through, text, "with the rest")):
            if not longer.startswith(shorter):
                at = next(i for i, (a, b) in enumerate(zip(shorter + "\0", longer + "\1", strict=False)) if a != b)
                raise RecordError(
                    f"the chat template does not tell where turn {first} ({chat.messages[first]['role']}) begins "
                    f"and ends: what it renders {what} no longer starts with what it rendered before, from character "
                    f"{at} on ({longer[max(at - 20, 0) : at + 20]!r}); mark the assistant's part with "
                    f"{{% generation %}} in the template"
                )
        return len(before), len(through)

    def _marked(self, chat: Chat) -> tuple[str, list[Span]]:
        marked = self._render(self._program.marked, chat, False)
        text, spans = _read_marks(marked)
        if self._program.marks_inside and text != self.render(chat):
            raise RecordError(
                "the chat template changes what its {% generation %} block wrote, so the block's place in the text is "
                "not known; move the block out of the macro, set or filter that it is in"
            )
        return text, spans

    def _render(self, template: jinja2.Template, chat: Chat, add_generation_prompt: bool) -> str:
        try:
            text = template.render(
                messages=chat.messages,
                tools=chat.tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self.special,
            )
        except Exception as error:
            hint = "; set a template date" if "strftime_now" in str(error) else ""
            raise RecordError(f"the chat template refuses the messages: {error}{hint}") from error
        _check_written(chat.messages, text)
        return text

    @cached_property
    def _program(self) -> "_Program":
        return _Program(self.source, self.date)


def load_template(spec: str | None, tokenizer: Tokenizer, *, date: str | None = None) -> ChatTemplate:
    """The template to use with a tokenizer.

    Args:
        spec: None takes the tokenizer's own, `"chatml"` the built-in one, anything else is a file of jinja source.
        tokenizer: Gives the special tokens that the template may name.
        date: See `ChatTemplate`.

    Raises:
        PadlessError: When there is no such template.

    Example:
        >>> from padless.corpus.tokenizers import load_tokenizer
        >>> load_template("chatml", load_tokenizer("bytes")).marks_generation
        True
    """
    if spec is None:
        source = tokenizer.chat_template
        if source is None:
            raise PadlessError(
                f"the tokenizer {tokenizer.name} has no chat template; give one with --chat-template: chatml, or a "
                f"file of jinja source"
            )
    elif spec == "chatml":
        source = CHATML
    else:
        try:
            source = Path(spec).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PadlessError(f"cannot read the chat template {spec}: {error}; expected chatml or a file") from error
    return ChatTemplate(source=source, special=dict(tokenizer.special), date=date)


class _Program:
    """The compiled template: as it is, and with marks around what the assistant writes."""

    def __init__(self, source: str, date: str | None) -> None:
        try:
            now = None if date is None else calendar_date.fromisoformat(date)
        except ValueError:
            raise PadlessError(f"the template date {date!r} is no date; expected YYYY-MM-DD") from None
        try:
            tree = _environment(_Generation, now).parse(source)
            blocks = [block for block in tree.find_all(nodes.CallBlock) if _is_generation(block)]
            self.marks = bool(blocks)
            self.marks_inside = any(
                _is_generation(inner)
                for outer in tree.find_all((nodes.Macro, nodes.AssignBlock, nodes.FilterBlock, nodes.CallBlock))
                for inner in outer.find_all(nodes.CallBlock)
            )
            self.plain = _environment(_Generation, now).from_string(source)
            self.marked = _environment(_MarkedGeneration, now).from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise PadlessError(f"the chat template is broken in line {error.lineno}: {error.message}") from error


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}`: what stands in it is the assistant's."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own protocol

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_wrap"), [], [], body).set_lineno(line)

    def _wrap(self, caller: Callable[[], str]) -> str:
        return caller()


class _MarkedGeneration(_Generation):
    """The same, with a mark before and after; jinja knows an extension by its class, so this is one of its own."""

    def _wrap(self, caller: Callable[[], str]) -> str:
        return f"{_OPEN}{caller()}{_CLOSE}"


def _is_generation(node: nodes.CallBlock) -> bool:
    called = node.call.node
    return isinstance(called, nodes.ExtensionAttribute) and called.name == "_wrap"


def _environment(extension: type[Extension], now: calendar_date | None) -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[extension, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    if now is not None:
        environment.globals["strftime_now"] = now.strftime
    return environment


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
    """Plain JSON; jinja's own filter would escape characters for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **layout)


def _check_written(messages: list[Message], text: str) -> None:
    """A template made for lists of parts renders a string as nothing, and does not say so."""
    last = messages[-1] if messages else {}
    if last.get("role") not in ("user", "assistant") or not isinstance(last.get("content"), str):
        return
    final_line = last["content"].strip().rpartition("\n")[2]
    if final_line not in text:
        raise RecordError(
            f"the chat template leaves out what the {last['role']} says in the last message; it may expect content as "
            f"a list of parts, e.g. [{{'type': 'text', 'text': ...}}]"
        )


def _read_marks(marked: str) -> tuple[str, list[Span]]:
    """Take the marks out; their places become spans of the text that is left."""
    pieces = marked.split(_OPEN)
    text, spans = [pieces[0]], []
    size = len(pieces[0])
    good = _CLOSE not in pieces[0]
    for piece in pieces[1:]:
        inside, *after = piece.split(_CLOSE)
        good = good and len(after) == 1
        spans.append((size, size + len(inside)))
        text += [inside, *after]
        size += len(inside) + sum(map(len, after))
    if not good:
        raise RecordError(
            "the chat template's {% generation %} blocks lie inside each other, or the messages hold the noncharacters "
            "U+FDD0 or U+FDD1, which mark them here"
        )
    return "".join(text), [span for span in spans if span[0] < span[1]]
