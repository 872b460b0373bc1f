"""Rows under the keys that Megatron's own loops read from its SFTDataset and VarlenDataset.

Both give shifted labels and a mask that fits them, made inside segments. Where ours differ from theirs:

- a sample keeps its last token as an input (without a target), so `original_seq_len` is the sample's own length;
- the tail of a buffer is segments of its own, where SFTDataset adds it to the last conversation;
- masks go by position, so a pad id that equals EOS costs no EOS.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from padless.errors import PadlessError
from padless.frameworks.megatron.dialect import shifted_fields
from padless.masks.packed_seq_params import padded_cu_seqlens
from padless.rows import Batch
from padless.training import PackedDataset


class Items:
    """A map-style data set of dictionaries, for loops that collate themselves.

    Args:
        dataset: Rows.
        item: From the `Batch` of one row to its dictionary: `sft_item` or `varlen_item`.
    """

    def __init__(self, dataset: PackedDataset, item: Callable[[Batch], dict[str, Any]]) -> None:
        self.dataset = dataset
        self.item = item

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.item(self.dataset[row])


def sft_item(batch: Batch) -> dict[str, Any]:
    """One buffer of `sequence_length` slots, as SFTDataset gives it.

    Returns:
        `tokens, labels, position_ids int64[T]`, `loss_mask float32[T]`, `cu_seqlens int32[T + 1]` (offsets into the
        slots, covering the tail too; the last one is repeated to the end, for a collate of equal shapes: Megatron
        strips that), `max_seqlen int32[]`.

    Raises:
        PadlessError: As `megatron_batch`.

    Example:
        >>> from padless import collate
        >>> item = sft_item(collate([[5, 6, 7], [8, 9]], capacity=6))
        >>> item["labels"].tolist(), item["cu_seqlens"].tolist()
        ([6, 7, -100, 9, -100, -100], [0, 3, 5, 6, 6, 6, 6])
    """
    import torch

    _, padded = padded_cu_seqlens(batch)
    offsets = np.full(batch.num_slots + 1, batch.num_slots, np.int32)
    offsets[: len(padded)] = padded
    return {
        **shifted_fields(batch),
        "cu_seqlens": torch.from_numpy(offsets),
        "max_seqlen": torch.tensor(int(np.diff(padded).max()), dtype=torch.int32),
    }


def varlen_item(batch: Batch) -> dict[str, Any]:
    """One sample, padded to the data set's granularity, as VarlenDataset gives it to Megatron's schedulers.

    Returns:
        `tokens, labels, position_ids int64[padded]`, `loss_mask float32[padded]`, `original_seq_len int32[1]` and
        `padded_seq_len int32[1]`.

    Raises:
        PadlessError: When the batch holds more than one segment.

    Example:
        >>> from padless import collate
        >>> item = varlen_item(collate([[5, 6, 7]], align=4))
        >>> item["labels"].tolist(), item["original_seq_len"].tolist(), item["padded_seq_len"].tolist()
        ([6, 7, -100, -100], [3], [4])
    """
    import torch

    if batch.num_segments != 1:
        raise PadlessError(
            f"a scheduled item is one sample and this batch holds {batch.num_segments} segments; take rows of "
            "`scheduled(store, ...)`, or `sft_item` for packed rows"
        )
    return {
        **shifted_fields(batch),
        "original_seq_len": torch.tensor([batch.num_tokens], dtype=torch.int32),
        "padded_seq_len": torch.tensor([batch.num_slots], dtype=torch.int32),
    }
