"""Whether the tokenizer that trains is the one that made the tokens."""

from pathlib import Path
from typing import Any

from padless.corpus import TokenStore
from padless.corpus.tokenizers import load_tokenizer
from padless.errors import PadlessError


def check_tokenizer(tokenizer: Any, store: TokenStore) -> None:
    """Refuse a tokenizer that did not make the tokens of a store.

    Args:
        tokenizer: A path or hub name, a tokenizer of padless, or one of transformers that was loaded from files.
        store: The store.

    Raises:
        PadlessError: When the fingerprints differ (both are shown), or there is nothing to compare.
    """
    made_by = store.manifest.tokenizer
    if made_by is None:
        raise PadlessError(
            f"{store.path} was made from arrays and names no tokenizer, so nothing can be checked against the one given"
        )
    found = _fingerprint(tokenizer)
    if found != made_by.fingerprint:
        raise PadlessError(
            f"the tokenizer given has fingerprint {found}, {store.path} was made with {made_by.name}, which has "
            f"{made_by.fingerprint}: the same ids would mean other text; train with that tokenizer or pack again"
        )


def _fingerprint(tokenizer: Any) -> str:
    if isinstance(tokenizer, str | Path):
        return load_tokenizer(str(tokenizer)).fingerprint
    if hasattr(tokenizer, "fingerprint"):
        return tokenizer.fingerprint
    if getattr(tokenizer, "name_or_path", ""):
        return _fingerprint_of_files(tokenizer)
    raise PadlessError(
        f"a {type(tokenizer).__name__} has no fingerprint to compare: give a path, a hub name, or a tokenizer of "
        "transformers that was loaded with from_pretrained"
    )


def _fingerprint_of_files(tokenizer: Any) -> str:
    """The fingerprint of the files that a transformers tokenizer was loaded from.

    Transformers rewrites parts of the definition on loading (its post-processor), so the object itself has another
    JSON than its files. What must still agree is the vocabulary: tokens added since then would be unknown ids here.
    """
    files = load_tokenizer(str(tokenizer.name_or_path))
    vocabulary = tokenizer.get_vocab()
    changed = [token for token, token_id in vocabulary.items() if files.token_id(token) != token_id]
    if changed:
        raise PadlessError(
            f"the tokenizer given differs from its files at {tokenizer.name_or_path} in {len(changed)} tokens, e.g. "
            f"{changed[0]!r}; save it with save_pretrained and pack with the folder"
        )
    return files.fingerprint
