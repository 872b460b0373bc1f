"""One rule in each kernel's language: a module per language, `dense` and `calls` at the front."""

from padless.masks.calls import Call, varlen_calls
from padless.masks.dense import additive_mask, dense_mask, inverted_mask, rectangular_mask
from padless.masks.flashmask import FlashMask, flash_mask
from padless.masks.flex import flex_block_mask, flex_mask_mod
from padless.masks.jax_ids import JaxIds, jax_segment_ids
from padless.masks.packed_seq_params import megatron_packed_seq_params, transformer_engine_kwargs
from padless.masks.slices import Slices, magi_slices
from padless.masks.torch_varlen import torch_varlen_kwargs
from padless.masks.xformers import xformers_biases

__all__ = [
    "Call",
    "FlashMask",
    "JaxIds",
    "Slices",
    "additive_mask",
    "dense_mask",
    "flash_mask",
    "flex_block_mask",
    "flex_mask_mod",
    "inverted_mask",
    "jax_segment_ids",
    "magi_slices",
    "megatron_packed_seq_params",
    "rectangular_mask",
    "torch_varlen_kwargs",
    "transformer_engine_kwargs",
    "varlen_calls",
    "xformers_biases",
]
