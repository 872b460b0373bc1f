"""Run attention over a batch of packed rows: one file per backend, one selector."""

from padless.attention.segments import Segments
from padless.attention.varlen import varlen_attention

__all__ = ["Segments", "varlen_attention"]
