"""Loss, loader and resume, balance over data-parallel ranks."""

from padless.training.balance import Cost
from padless.training.contract import check_coverage, check_resume
from padless.training.dataset import PackedDataset
from padless.training.loader import PackedLoader
from padless.training.loss import count_targets, normalize_gradients, packed_linear_loss, packed_loss
from padless.training.media_dataset import MediaDataset, TowersCost
from padless.training.sampler import RowSampler

__all__ = [
    "Cost",
    "MediaDataset",
    "PackedDataset",
    "PackedLoader",
    "RowSampler",
    "TowersCost",
    "check_coverage",
    "check_resume",
    "count_targets",
    "normalize_gradients",
    "packed_linear_loss",
    "packed_loss",
]
