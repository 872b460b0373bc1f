"""The tokenizer beside the tokens it made: a store can be read without asking where its tokenizer lies."""

import hashlib
import json
from pathlib import Path

from padless.corpus.manifest import FileEntry, Manifest, TokenizerEntry
from padless.corpus.templates import ChatTemplate
from padless.corpus.tokenizers import BytesTokenizer, Tokenizer, load_tokenizer
from padless.durable import write_bytes
from padless.errors import PadlessError

__all__ = ["TOKENIZER", "open_tokenizer", "save_tokenizer", "tokenizer_entry"]

TOKENIZER = "tokenizer"


def tokenizer_entry(tokenizer: Tokenizer, template: ChatTemplate | None, uses_template: bool) -> TokenizerEntry:
    """What a manifest says of a tokenizer."""
    files = _files(tokenizer, template)
    return TokenizerEntry(
        name=tokenizer.name,
        fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        eod_id=tokenizer.eod_id,
        pad_id=tokenizer.pad_id,
        template_fingerprint=template.fingerprint if template is not None and uses_template else None,
        files=tuple(
            FileEntry(name=f"{TOKENIZER}/{name}", bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
            for name, data in files.items()
        ),
    )


def save_tokenizer(folder: Path, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
    """Write the files that `tokenizer_entry` lists into a store's folder."""
    files = _files(tokenizer, template)
    if not files:
        return
    (folder / TOKENIZER).mkdir(exist_ok=True)
    for name, data in files.items():
        write_bytes(folder / TOKENIZER / name, data)


def open_tokenizer(folder: Path, manifest: Manifest) -> Tokenizer:
    """The tokenizer that made a store.

    Raises:
        PadlessError: When the store was made from arrays, or its tokenizer is another one by now.
    """
    entry = manifest.tokenizer
    if entry is None:
        raise PadlessError(f"{folder} was made from token ids in memory; there is no tokenizer to read them with")
    spec = str(folder / TOKENIZER) if entry.files else entry.name
    tokenizer = load_tokenizer(spec, eod=None if entry.eod_id is None else str(entry.eod_id))
    if tokenizer.fingerprint != entry.fingerprint:
        raise PadlessError(
            f"the tokenizer in {spec} has fingerprint {tokenizer.fingerprint}, the store was made with "
            f"{entry.fingerprint}: the same ids would mean other text"
        )
    return tokenizer


def _files(tokenizer: Tokenizer, template: ChatTemplate | None) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    if not isinstance(tokenizer, BytesTokenizer):
        files["tokenizer.json"] = tokenizer.definition.encode()
        files["tokenizer_config.json"] = json.dumps(tokenizer.special, indent=2, sort_keys=True).encode() + b"\n"
        if template is not None:
            files["chat_template.jinja"] = template.source.encode()
    return files
