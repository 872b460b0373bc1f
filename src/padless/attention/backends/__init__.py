"""One file per backend, each with its function and what it declares."""

from padless.attention.backends import (
    dense,
    flash_attn_2,
    flash_attn_3,
    flash_attn_4,
    flex,
    reference,
    segmented,
    torch_varlen,
    transformer_engine,
    xformers,
)

BACKENDS = {
    module.BACKEND.name: module.BACKEND
    for module in (
        flash_attn_4,
        flash_attn_3,
        flash_attn_2,
        torch_varlen,
        transformer_engine,
        xformers,
        flex,
        segmented,
        dense,
        reference,
    )
}
