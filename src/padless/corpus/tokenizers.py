"""Tokenizers: a Hugging Face `tokenizer.json`, its folder, a hub name, or `bytes`.

A tokenizer here does four things: encode a batch of texts, say which tokens hold a piece of a text, decode, and tell
its fingerprint. Truncation, padding and merge dropout that a `tokenizer.json` may carry are switched off: they would
change the data.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from padless.corpus.spans import Span, SpanIds, byte_lengths, span_ids, spans_by_bytes
from padless.errors import MissingExtraError, PadlessError

__all__ = ["BytesTokenizer", "FileTokenizer", "Tokenizer", "load_tokenizer"]

_EOD_NAMES = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eod|>",
    "<eod>",
    "<EOD>",
    "</s>",
    "<eos>",
    "<EOS>",
    "[EOS]",
    "<|im_end|>",
    "<|eot_id|>",
)
_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def load_tokenizer(spec: str, *, eod: str | int | None = None, pad: str | int | None = None) -> "Tokenizer":
    """Open a tokenizer.

    Args:
        spec: `"bytes"`, a path to a `tokenizer.json`, a folder that holds one, or a name on the Hugging Face hub (which
            needs `huggingface_hub`; a cached copy is used without asking the network).
        eod: Token or id (digits are an id) that ends a sample, in place of the tokenizer's own.
        pad: Token or id for padding, in place of the tokenizer's own.

    Raises:
        PadlessError: When there is no such tokenizer, or `eod` / `pad` is not in its vocabulary.

    Example:
        >>> tokenizer = load_tokenizer("bytes")
        >>> tokenizer.encode_batch(["né"]), tokenizer.vocab_size, tokenizer.eod_id
        ([[110, 195, 169]], 257, 256)
    """
    if spec == "bytes":
        tokenizer: Tokenizer = BytesTokenizer()
    else:
        tokenizer = FileTokenizer.open(spec, _find_files(spec))
    if eod is not None:
        tokenizer.eod_id = _named_id(tokenizer, eod, "EOD")
    if pad is not None:
        tokenizer.pad_id = _named_id(tokenizer, pad, "padding")
    return tokenizer


class BytesTokenizer:
    """UTF-8 bytes as tokens, and 256 as EOD: nothing to train, nothing to download.

    Example:
        >>> BytesTokenizer().decode([104, 105, 256])
        'hi<eod>'
    """

    EOD = "<eod>"

    def __init__(self) -> None:
        self.name = "bytes"
        self.vocab_size = 257
        self.eod_id: int | None = 256
        self.pad_id: int | None = None
        self.special = {"eos_token": self.EOD}
        self.chat_template: str | None = None

    @property
    def fingerprint(self) -> str:
        """sha256 that names the UTF-8 bytes as a tokenizer."""
        return hashlib.sha256(b"padless bytes 1: UTF-8, 256 ends a sample").hexdigest()

    def encode_batch(self, texts: Sequence[str], *, special_tokens: bool = True) -> list[list[int]]:
        """The bytes of each text; only the string `<eod>` in it stays what it is, five bytes."""
        return [list(text.encode()) for text in texts]

    def encode_spans(
        self,
        texts: Sequence[str],
        pieces: Sequence[Sequence[Span]],
        *,
        special_tokens: bool = True,
    ) -> list[SpanIds]:
        """See `SpanIds`; a byte never straddles."""
        rows = zip(self.encode_batch(texts, special_tokens=special_tokens), texts, pieces, strict=True)
        return [
            SpanIds(ids, [(_bytes_before(text, a), _bytes_before(text, b)) for a, b in spans], 0)
            for ids, text, spans in rows
        ]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text; bytes that are no UTF-8 show as the replacement character."""
        pieces = _split_at(np.asarray(ids, np.int64), 256)
        return self.EOD.join(piece.astype(np.uint8).tobytes().decode("utf-8", "replace") for piece in pieces)

    def token_id(self, name: str) -> int | None:
        """The id of a token by its name; only EOD has one."""
        return 256 if name == self.EOD else None

    def token_text(self, token: int | None) -> str | None:
        """None: no text is read as a special token."""
        return None


class FileTokenizer:
    """A tokenizer of the `tokenizers` library, with what its configuration says beside it.

    Attributes:
        name: As the user named it.
        vocab_size: Every id is below it.
        eod_id: Ends a sample: the configuration's `eos_token`, else the one token with a name that is customary for it,
            else None.
        pad_id: The configuration's `pad_token`, None without one.
        special: Named special tokens for chat templates, e.g. `bos_token`.
        chat_template: Jinja source, None when there is none.
    """

    def __init__(self, *, name: str, tokenizer_json: str, config: dict[str, Any], template: str | None) -> None:
        self.name = name
        self._json = _plain(tokenizer_json, name)
        self._backend = _backend(self._json, name)
        self._added = {token_id: token.content for token_id, token in self._backend.get_added_tokens_decoder().items()}
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise PadlessError(f"the tokenizer {name} has an empty vocabulary; train it first")
        self.vocab_size = max(vocabulary.values()) + 1
        self._token_bytes = byte_lengths(json.loads(self._json), vocabulary, self._added)
        self.special = {key: value for key in config if (value := _token_text(config, key)) is not None}
        self.eod_id = self._id_of(self.special.get("eos_token"))
        self.pad_id = self._id_of(self.special.get("pad_token"))
        if self.eod_id is None:
            known = [token for token in _EOD_NAMES if self._backend.token_to_id(token) is not None]
            self.eod_id = self._id_of(known[0]) if len(known) == 1 and "eos_token" not in self.special else None
        self.chat_template = template

    @classmethod
    def open(cls, name: str, files: dict[str, Path]) -> "FileTokenizer":
        """Read the files of one tokenizer; only `tokenizer.json` has to be there."""
        config = {**_read_json(files, "special_tokens_map.json"), **_read_json(files, "tokenizer_config.json")}
        template = config.pop("chat_template", None)
        if "chat_template.jinja" in files:
            template = _read_text(files["chat_template.jinja"])
        if isinstance(template, list):
            template = next((item["template"] for item in template if item["name"] == "default"), None)
        return cls(
            name=name,
            tokenizer_json=_read_text(files["tokenizer.json"]),
            config=config,
            template=template,
        )

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["_backend"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._backend = _backend(self._json, self.name)

    @property
    def definition(self) -> str:
        """The content of a `tokenizer.json` that gives this tokenizer again."""
        return self._json

    @property
    def fingerprint(self) -> str:
        """sha256 of the tokenizer's own definition, without its spacing."""
        return hashlib.sha256(self._json.encode()).hexdigest()

    def encode_batch(self, texts: Sequence[str], *, special_tokens: bool = True) -> list[list[int]]:
        """Ids of each text, on as many threads as `tokenizers` uses.

        With `special_tokens` the tokenizer's own frame is added, e.g. a beginning-of-sequence token.
        """
        return [item.ids for item in self._backend.encode_batch_fast(texts, add_special_tokens=special_tokens)]

    def encode_spans(
        self,
        texts: Sequence[str],
        pieces: Sequence[Sequence[Span]],
        *,
        special_tokens: bool = True,
    ) -> list[SpanIds]:
        """See `SpanIds`: each text is encoded whole, so its tokens are those that it always gets."""
        if self._token_bytes is None:
            return self._spans_by_offsets(texts, pieces, special_tokens)
        encoded = self.encode_batch(texts, special_tokens=special_tokens)
        found = spans_by_bytes(encoded, texts, pieces, self._token_bytes, self._frame() if special_tokens else (0, 0))
        unsure = [i for i, item in enumerate(found) if item is None]
        again = self._spans_by_offsets([texts[i] for i in unsure], [pieces[i] for i in unsure], special_tokens)
        for i, item in zip(unsure, again, strict=True):
            found[i] = item
        return [item for item in found if item is not None]

    def _spans_by_offsets(
        self, texts: Sequence[str], pieces: Sequence[Sequence[Span]], special_tokens: bool
    ) -> list[SpanIds]:
        encodings = self._backend.encode_batch(texts, add_special_tokens=special_tokens)
        rows = zip(encodings, texts, pieces, strict=True)
        return [span_ids(encoding, text, spans) for encoding, text, spans in rows]

    def _frame(self) -> tuple[int, int]:
        """How many tokens the tokenizer puts before and after a text."""
        mask = self._backend.encode("a", add_special_tokens=True).special_tokens_mask
        return mask.index(0), mask[::-1].index(0)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text, special tokens written out."""
        return self._backend.decode(np.asarray(ids).tolist(), skip_special_tokens=False)

    def token_id(self, name: str) -> int | None:
        """The id of a token by its name, None when there is no such token."""
        return self._backend.token_to_id(name)

    def token_text(self, token: int | None) -> str | None:
        """How a special token is written in a text, None when it is not one that texts are searched for."""
        return None if token is None else self._added.get(token)

    def _id_of(self, token: str | None) -> int | None:
        return None if token is None else self.token_id(token)


Tokenizer = BytesTokenizer | FileTokenizer


def _find_files(spec: str) -> dict[str, Path]:
    path = Path(spec)
    if path.is_dir():
        if not (path / "tokenizer.json").is_file():
            raise PadlessError(
                f"{spec} holds no tokenizer.json; load it with transformers' AutoTokenizer, which makes the fast form, "
                f"and save_pretrained it"
            )
        return {name: path / name for name in _FILES if (path / name).is_file()}
    if path.is_file():
        beside = {name: path.parent / name for name in _FILES[1:] if (path.parent / name).is_file()}
        return {**beside, "tokenizer.json": path}
    if path.suffix == ".json" or spec.startswith((".", "/", "~")) or spec.count("/") > 1:
        raise PadlessError(
            f"there is no tokenizer at {spec}; expected a tokenizer.json, its folder, a hub name or bytes"
        )
    return _from_hub(spec)


def _from_hub(name: str) -> dict[str, Path]:
    """The files of a tokenizer on the hub, from the cache when they are there."""
    try:
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
    except ImportError:
        raise MissingExtraError(
            f"{name} is no file here, and a tokenizer of that name on the hub needs huggingface_hub: "
            f"pip install 'padless[hf]'"
        ) from None
    cached = {file: try_to_load_from_cache(name, file) for file in _FILES} if _hub_name(name) else {}
    found = {file: Path(path) for file, path in cached.items() if isinstance(path, str)}
    if "tokenizer.json" in found:
        return found
    try:
        found = {"tokenizer.json": Path(hf_hub_download(name, "tokenizer.json"))}
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PadlessError(
            f"there is no file {name}, and no tokenizer of that name in the hub's cache or within reach ({reason})"
        ) from error
    for file in _FILES[1:]:
        try:
            found[file] = Path(hf_hub_download(name, file))
        except Exception as error:
            if type(error).__name__ not in ("EntryNotFoundError", "RemoteEntryNotFoundError"):
                raise PadlessError(f"could not fetch {file} of {name} from the hub: {error}") from error
    return found


def _hub_name(name: str) -> bool:
    return all(part and part[0].isalnum() for part in name.split("/"))


def _plain(text: str, name: str) -> str:
    """A tokenizer's definition without truncation, padding and dice, and with offsets that leave nothing out."""
    try:
        definition = json.loads(text)
        definition["truncation"] = definition["padding"] = None
        if isinstance(definition.get("model"), dict) and "dropout" in definition["model"]:
            definition["model"]["dropout"] = None
    except (ValueError, TypeError) as error:
        raise PadlessError(f"the tokenizer {name} is not a tokenizer.json: {error}") from error
    _keep_offsets(definition.get("post_processor"))
    return json.dumps(definition, ensure_ascii=False, separators=(",", ":"))


def _keep_offsets(processor: Any) -> None:
    """Byte-level processors cut spaces from offsets; then no token would hold a space at a border."""
    if not isinstance(processor, dict):
        return
    if "trim_offsets" in processor:
        processor["trim_offsets"] = False
    for inner in processor.get("processors") or ():
        _keep_offsets(inner)


def _backend(definition: str, name: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(definition)
    except Exception as error:
        raise PadlessError(
            f"the tokenizer {name} cannot be read by tokenizers {tokenizers.__version__}: {error}"
        ) from error


def _token_text(config: dict[str, Any], key: str) -> str | None:
    value = config[key]
    if isinstance(value, dict):
        value = value.get("content")
    return value if key.endswith("_token") and isinstance(value, str) else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PadlessError(f"cannot read {path.as_posix()}: {error}") from error


def _read_json(files: dict[str, Path], name: str) -> dict[str, Any]:
    if name not in files:
        return {}
    try:
        value = json.loads(_read_text(files[name]))
    except ValueError as error:
        raise PadlessError(f"{files[name].as_posix()} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise PadlessError(f"{files[name].as_posix()} holds no JSON object")
    return value


def _named_id(tokenizer: Tokenizer, wanted: str | int, role: str) -> int:
    is_name = isinstance(wanted, str) and not wanted.isdecimal()
    found = tokenizer.token_id(str(wanted)) if is_name else int(wanted)
    if found is None or not 0 <= found < tokenizer.vocab_size:
        raise PadlessError(
            f"the {role} token {wanted!r} is not in the vocabulary of {tokenizer.name} ({tokenizer.vocab_size:,} ids)"
        )
    return found


def _bytes_before(text: str, character: int) -> int:
    return len(text[:character].encode())


def _split_at(ids: np.ndarray, mark: int) -> list[np.ndarray]:
    cuts = np.flatnonzero(ids == mark)
    pieces = np.split(ids, cuts)
    return [pieces[0], *(piece[1:] for piece in pieces[1:])]
