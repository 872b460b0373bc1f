"""Static batches reach the models as tensors of one shape, whatever is in them."""

from typing import Any

import pytest
import torch

from padless.frameworks.dialects import dialect
from padless.rows import Batch, collate

CONTENTS = ([[5]], [[1], [2], [3], [4]], [[7] * 60], [[7] * 13, [7] * 2, [7] * 30])


def shapes_of(value: Any) -> Any:
    """Shapes of all tensors in what a dialect gives, and the numbers beside them."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, dict):
        return {name: shapes_of(inner) for name, inner in value.items()}
    return shapes_of(vars(value)) if hasattr(value, "cu_seqlens_q") else value


@pytest.mark.interop
@pytest.mark.parametrize("align", [1, 4])
def test_transformers_gets_one_shape(align: int) -> None:
    shapes = [shapes_of(dialect("transformers")(batch)) for batch in batches(align)]
    assert all(shape == shapes[0] for shape in shapes)
    assert shapes[0]["cu_seq_lens_q"] == (2 * 4 + 1,)
    assert shapes[0]["max_length_q"] == 64


@pytest.mark.interop
@pytest.mark.parametrize("align", [1, 4])
def test_megatron_gets_one_shape_but_for_the_longest_extent(align: int) -> None:
    """Megatron's RoPE table is that long, and one as long as the stream would be read as absolute positions."""
    shapes = [shapes_of(dialect("megatron")(batch)) for batch in batches(align)]
    for shape in shapes:
        shape["packed_seq_params"].pop("max_seqlen_q")
        shape["packed_seq_params"].pop("max_seqlen_kv")
        shape["packed_seq_params"].pop("pad_between_seqs", None)
    assert all(shape == shapes[0] for shape in shapes)
    assert shapes[0]["packed_seq_params"]["cu_seqlens_q"] == (2 * 4 + 1,)


def batches(align: int) -> list[Batch]:
    return [collate(samples, static=(64, 4), align=align) for samples in CONTENTS]
