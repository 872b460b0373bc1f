"""One rule in each kernel's language: a module per language, `dense` and `calls` at the front."""

from padless.masks.calls import Call, varlen_calls
from padless.masks.dense import additive_mask, dense_mask, inverted_mask, rectangular_mask

__all__ = ["Call", "additive_mask", "dense_mask", "inverted_mask", "rectangular_mask", "varlen_calls"]
