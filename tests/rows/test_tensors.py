"""Between numpy and torch: nothing is copied on the CPU, nothing changes its value."""

import dataclasses
import pickle

import numpy as np
import pytest
import torch

from padless.rows import Batch, Rule, collate
from padless.rows.tensors import to_torch


def example() -> Batch:
    samples = [{"input_ids": [1, 2, 3], "prefix_length": 2}, {"input_ids": [4, 5], "prefix_length": 1}]
    media = {"image": {"grid": np.array([[1, 2, 2]]), "name": "vit"}}
    rule = Rule(kind="prefix-lm")
    return collate([samples, samples], align=4, rule=rule, loss_weights="per-sample", media=media)


def arrays_of(batch: Batch) -> dict:
    values = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    values["segment_ids"] = batch.segment_ids
    values["grid"] = batch.media["image"]["grid"]  # type: ignore[index]
    return {name: value for name, value in values.items() if hasattr(value, "shape")}


def test_torch_shares_memory_with_numpy() -> None:
    batch = example()
    tensors = arrays_of(batch.torch())
    for name, array in arrays_of(batch).items():
        assert tensors[name].data_ptr() == array.ctypes.data, name
        assert torch.equal(tensors[name], torch.from_numpy(array)), name
    assert len(tensors) == 11


def test_there_and_back() -> None:
    batch = example()
    for other in (batch.torch().numpy(), batch.to("cpu").numpy(), pickle.loads(pickle.dumps(batch.torch())).numpy()):
        for name, array in arrays_of(batch).items():
            np.testing.assert_array_equal(arrays_of(other)[name], array)
            assert arrays_of(other)[name].dtype == array.dtype
        assert repr(other) == repr(batch)


def test_a_batch_of_tensors_answers_as_one_of_arrays() -> None:
    batch, tensors = example(), example().torch()
    assert tensors.summary() == batch.summary()
    assert tensors.shifted_labels().tolist() == batch.shifted_labels().tolist()
    assert tensors.shifted_loss_weights().tolist() == batch.shifted_loss_weights().tolist()
    assert [piece.tolist() for piece in tensors.unpack(tensors.input_ids)] == [[1, 2, 3], [4, 5]] * 2
    assert tensors.contiguous is batch.contiguous is False
    assert tensors.covering_cu_seqlens()[0].tolist() == batch.covering_cu_seqlens()[0].tolist()
    assert tensors.rectangle(tensors.input_ids).shape == (2, 8)
    assert tensors.labels.tolist() == batch.labels.tolist()  # the shift worked on a copy


def test_nothing_but_shapes_is_read_from_a_device() -> None:
    """The meta device has no values: whatever reads one raises."""
    batch = example().to("meta")
    assert repr(batch) == repr(example())
    assert batch.segment_ids.device.type == "meta"
    assert batch.shifted_labels().shape == (16,)


def test_read_only_memory_is_copied() -> None:
    frozen = np.arange(3)
    frozen.flags.writeable = False
    tensor = to_torch(frozen)
    tensor[0] = 9
    assert frozen.tolist() == [0, 1, 2]


@pytest.mark.gpu
def test_pinned_memory_and_a_real_device() -> None:
    batch = example().pin_memory()
    assert batch.input_ids.is_pinned()
    assert batch.to("cuda", non_blocking=True).labels.tolist() == example().labels.tolist()
