"""pi0 and pi0.5 without padding: only real views, only real prompt tokens, plain varlen calls."""

from padless.errors import require

require("torch", extra="torch", feature="padless.frameworks.pi05")

from padless.frameworks.pi05.attention import policy_attention  # noqa: E402
from padless.frameworks.pi05.blocks import block_rows  # noqa: E402
from padless.frameworks.pi05.installing import Installed, padding_free, trim  # noqa: E402
from padless.frameworks.pi05.layout import PI0, PI05, PI05_LIBERO, PolicyLayout  # noqa: E402
from padless.frameworks.pi05.prompts import prompt_buckets, prompt_slice  # noqa: E402
from padless.frameworks.pi05.rows import PolicyRows  # noqa: E402
from padless.frameworks.pi05.views import drop_masked  # noqa: E402

__all__ = [
    "PI0",
    "PI05",
    "PI05_LIBERO",
    "Installed",
    "PolicyLayout",
    "PolicyRows",
    "block_rows",
    "drop_masked",
    "padding_free",
    "policy_attention",
    "prompt_buckets",
    "prompt_slice",
    "trim",
]
