"""Hugging Face Transformers: isolated packed rows for any model, by name, checked on the very model."""

from padless.errors import require

require("transformers", extra="hf", feature="padless.frameworks.transformers")

from padless.frameworks.transformers.attention import register  # noqa: E402
from padless.frameworks.transformers.collator import PackedCollator  # noqa: E402
from padless.frameworks.transformers.prefilling import Prefilled, prefill  # noqa: E402
from padless.frameworks.transformers.preparing import Prepared, prepare  # noqa: E402

__all__ = ["PackedCollator", "Prefilled", "Prepared", "prefill", "prepare", "register"]
