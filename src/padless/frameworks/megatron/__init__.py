"""Megatron-Core: its two data paths, its `PackedSeqParams`, and what its backends cannot do.

dialect.py   one micro-batch as `GPTModel.forward` takes it
dataset.py   rows of a store in which every sample ends with EOD, trained on or not by its position
prepacked.py conversations in one `sequence_length` buffer (the role of SFTDataset)
scheduled.py one sample each, packed over DP x CP per global batch (the role of VarlenDataset)
items.py     the same rows under the keys that Megatron's own loops read
limits.py    what the installed versions and a model cannot do, said before training
"""

from padless.frameworks.megatron.dataset import MegatronDataset, with_eod
from padless.frameworks.megatron.dialect import megatron_batch
from padless.frameworks.megatron.items import Items, sft_item, varlen_item
from padless.frameworks.megatron.limits import check_megatron, megatron_problems
from padless.frameworks.megatron.prepacked import prepacked
from padless.frameworks.megatron.scheduled import MicroBatch, ScheduledBatches, scheduled

__all__ = [
    "Items",
    "MegatronDataset",
    "MicroBatch",
    "ScheduledBatches",
    "check_megatron",
    "megatron_batch",
    "megatron_problems",
    "prepacked",
    "scheduled",
    "sft_item",
    "varlen_item",
    "with_eod",
]
