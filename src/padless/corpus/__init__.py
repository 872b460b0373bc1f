"""Text to a `TokenStore`: sources, tokenizers, chat templates, store, manifest."""

from padless.corpus.job import pack
from padless.corpus.sample import Sample
from padless.corpus.store import TokenStore

__all__ = ["Sample", "TokenStore", "pack"]
