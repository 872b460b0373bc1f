"""Run attention over a batch of packed rows: one file per backend, one selector."""

from padless.attention.segments import Segments
from padless.attention.varlen import choose, varlen_attention

__all__ = ["Segments", "choose", "varlen_attention"]
