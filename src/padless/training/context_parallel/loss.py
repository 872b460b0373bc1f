"""The loss of one rank's slots: a part of a sum whose denominator belongs to the whole global batch."""

from typing import TYPE_CHECKING

from padless.errors import PadlessError
from padless.rows import IGNORED
from padless.training.context_parallel.shard import Shard

if TYPE_CHECKING:
    import torch


def sharded_loss(logits: "torch.Tensor", shard: Shard, *, denominator: float, ahead: int = 1) -> "torch.Tensor":
    """Cross entropy of next tokens of this rank's slots over the global batch's targets.

    Ranks of one row hold different numbers of targets, so a mean over a rank's own would weigh tokens by where they
    lie (one target on one of two ranks: half the gradient). Summed over context-parallel ranks this is
    `packed_loss(..., denominator=...)` of the whole row, gradients included.

    Args:
        logits: `[t, V]`, of this rank's slots.
        shard: The slots. Loss weights of the batch are used where it has them.
        denominator: `count_targets(batches, group=...)` of *whole* batches, over data-parallel ranks only: every
            context-parallel rank holds the same rows, which would count as often as there are ranks. With loss
            weights, `count_targets(..., reduction="weighted")`.
        ahead: How many places ahead the logits predict: 1 for the model's own head, 2 for the first extra head of
            multi-token prediction (whose denominator counts `next_labels(2)`).

    Returns:
        A scalar: sum over this rank's targets / denominator. Where DDP or FSDP averages gradients over data- and
        context-parallel ranks, multiply by their number before `backward()`.

    Raises:
        PadlessError: For logits of other slots, or a negative denominator.

    Example:
        >>> import torch
        >>> from padless import collate
        >>> from padless.training.context_parallel import ContextParallel, Shard
        >>> batch = collate([[0, 1, 2, 3]], align=4).torch()
        >>> parts = [Shard(batch=batch, parallel=ContextParallel(ranks=2), rank=rank) for rank in (0, 1)]
        >>> losses = [sharded_loss(torch.zeros(2, 4), part, denominator=batch.num_targets) for part in parts]
        >>> [round(loss.item(), 4) for loss in losses]  # 1 and 2 of 3 targets, each ln 4
        [0.4621, 0.9242]
    """
    from torch.nn.functional import cross_entropy

    if logits.ndim != 2 or logits.shape[0] != shard.num_slots:
        raise PadlessError(f"logits of shape {tuple(logits.shape)}: expected [{shard.num_slots}, V], this rank's slots")
    if denominator < 0:
        raise PadlessError(f"denominator={denominator}: expected the targets of the global batch")
    import torch

    labels = torch.as_tensor(shard.next_labels(ahead), device=logits.device).long()
    wide = logits if logits.dtype == torch.float64 else logits.float()
    losses = cross_entropy(wide, labels, ignore_index=IGNORED, reduction="none")
    weights = shard.next_weights(ahead)
    if weights is not None:
        losses = losses * torch.as_tensor(weights, device=logits.device).to(losses.dtype)
    # Without any target in the step the loss is zero and so is its gradient; 0 / 0 would poison the weights.
    return losses.sum() / denominator if denominator else losses.sum() * 0.0
