"""The loss of packed rows: the same objective as of the samples alone, whatever rows they share.

A mean per micro-batch changes the objective as soon as micro-batches differ in their number of targets, which packed
rows do. So the sum over targets is divided by the targets of the whole global batch: all accumulation steps, all ranks.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from padless.errors import PadlessError
from padless.rows import IGNORED, Batch

if TYPE_CHECKING:
    import torch

Reduction = Literal["per-token", "per-sample", "weighted"]


def packed_loss(
    logits: "torch.Tensor",
    batch: Batch,
    *,
    reduction: Reduction = "per-token",
    denominator: float | None = None,
) -> "torch.Tensor":
    """Cross entropy of next tokens inside segments, divided by the whole global batch's targets.

    Args:
        logits: `[T, V]`, `[1, T, V]` or `[R, T / R, V]`, as the model gives them: position i predicts token i + 1.
            Computed in float32 at least; float64 stays float64.
        batch: The batch (of torch tensors) that the logits belong to. Its labels are unshifted; no label crosses a
            segment's end.
        reduction: `"per-token"`: every target weighs the same (the default of the field). `"per-sample"`: the mean
            over samples of their mean token loss (LongAlign, arXiv 2401.18058, eq. 4). `"weighted"`: by
            `batch.loss_weights`.
        denominator: What to divide by: `count_targets(...)` of all batches of the optimizer step. Default: of this
            batch alone, which is right only when the step is this batch.

    Returns:
        A scalar. Summed over the micro-batches of a step (and over ranks) it is the loss of the global batch. DDP and
        FSDP average gradients over ranks: multiply by the number of ranks before `backward()`.

    Raises:
        PadlessError: When shapes disagree, or the batch carries loss weights that the reduction would ignore.

    Example:
        >>> import torch
        >>> from padless import collate
        >>> batch = collate([[0, 1, 2], [0, 1]]).torch()
        >>> logits = torch.zeros(5, 4)
        >>> round(packed_loss(logits, batch).item(), 4)  # 3 targets, each ln 4
        1.3863
    """
    from torch.nn.functional import cross_entropy

    flat = _flatten(logits, batch)
    losses = cross_entropy(_upcast(flat), _next_tokens(batch, flat.device), ignore_index=IGNORED, reduction="none")
    return _reduce(losses, batch, reduction, denominator)


def packed_linear_loss(
    hidden: "torch.Tensor",
    weight: "torch.Tensor",
    batch: Batch,
    *,
    reduction: Reduction = "per-token",
    denominator: float | None = None,
    chunk: int = 2048,
) -> "torch.Tensor":
    """`packed_loss(hidden @ weight.T, ...)` without ever holding the logits of all positions.

    Only positions that have a target reach the output layer. Torch's own fused `linear_cross_entropy` is used where
    the installed torch has it; elsewhere chunks are recomputed in the backward pass.

    Args:
        hidden: `[T, H]` or `[1, T, H]`, the last hidden states.
        weight: `[V, H]`, the output layer.
        batch: As for `packed_loss`.
        reduction: As for `packed_loss`.
        denominator: As for `packed_loss`.
        chunk: Positions whose logits exist at one time, where torch has no fused operator.

    Example:
        >>> import torch
        >>> from padless import collate
        >>> batch = collate([[0, 1, 2], [0, 1]]).torch()
        >>> hidden, weight = torch.randn(5, 8), torch.randn(4, 8)
        >>> torch.allclose(packed_linear_loss(hidden, weight, batch), packed_loss(hidden @ weight.T, batch))
        True
    """
    flat = _flatten(hidden, batch)
    labels = _next_tokens(batch, flat.device)
    wanted = (labels != IGNORED).nonzero().squeeze(1)
    losses = flat.new_zeros(len(labels), dtype=_upcast(flat[:0]).dtype)
    found = _linear_cross_entropy(flat[wanted], weight, labels[wanted], chunk)
    return _reduce(losses.index_put((wanted,), found.to(losses.dtype)), batch, reduction, denominator)


def count_targets(batches: Batch | Sequence[Batch], *, reduction: Reduction = "per-token", group: Any = None) -> float:
    """What to divide by: the targets of an optimizer step, over its accumulation steps and, with `group`, its ranks.

    Args:
        batches: The micro-batches of this step on this rank.
        reduction: The reduction it is for: targets, samples with a target, or the sum of weights.
        group: A `torch.distributed` process group, or `True` for the default one; `None` counts this process alone.

    Returns:
        The denominator; one small all-reduce when a group is given.

    Example:
        >>> from padless import collate
        >>> count_targets([collate([[1, 2, 3]]), collate([[4, 5], [6, 7]])])
        4.0
    """
    each = [batches] if isinstance(batches, Batch) else list(batches)
    total = float(sum(_denominator(batch, reduction) for batch in each))
    if group is None:
        return total
    import torch
    import torch.distributed as dist

    on_gpu = dist.get_backend(None if group is True else group) == "nccl"
    count = torch.tensor(total, dtype=torch.float64, device="cuda" if on_gpu else "cpu")
    dist.all_reduce(count, group=None if group is True else group)
    return float(count)


def normalize_gradients(
    parameters: "Iterable[torch.nn.Parameter]", denominator: float, *, averaged_over: int = 1
) -> None:
    """Divide gradients of summed losses by the step's targets, in place, once, after the last backward.

    For loops that learn the number of targets only at the end of a step (streams): call `packed_loss` with
    `denominator=1` for every micro-batch, then this.

    Args:
        parameters: Whose `.grad` to scale; DTensor gradients (FSDP2) work too.
        denominator: `count_targets(...)` of the whole step.
        averaged_over: Ranks over which DDP or FSDP has already averaged the gradients; that average is undone.

    Raises:
        PadlessError: When there was no target at all: the gradients are zero and dividing would make them NaN.
    """
    import torch

    if denominator <= 0:
        raise PadlessError(
            f"normalize_gradients: the step has {denominator:g} targets, so its gradient is undefined (0 / 0); "
            f"skip the optimizer step, or check why every label is {IGNORED}"
        )
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(averaged_over / denominator)


def _flatten(x: "torch.Tensor", batch: Batch) -> "torch.Tensor":
    slots = batch.num_slots
    flat = x.reshape(-1, x.shape[-1])
    if x.ndim not in (2, 3) or flat.shape[0] != slots:
        raise PadlessError(
            f"packed_loss: logits have shape {tuple(x.shape)} and the batch has {slots:,} slots; "
            f"give [T, V], [1, T, V] or [rows, T / rows, V] with T = {slots:,}, unshifted and with no slot cut off"
        )
    return flat


def _next_tokens(batch: Batch, device: Any) -> "torch.Tensor":
    """int64[T]: the label of the token after each position; the first token of a segment is nobody's target."""
    import torch

    return torch.as_tensor(batch.shifted_labels(), device=device).long()


def _upcast(x: "torch.Tensor") -> "torch.Tensor":
    import torch

    return x if x.dtype == torch.float64 else x.float()


def _linear_cross_entropy(
    hidden: "torch.Tensor", weight: "torch.Tensor", labels: "torch.Tensor", chunk: int
) -> "torch.Tensor":
    """float[N], the loss of each position; `labels` holds targets only."""
    import torch
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

    if hasattr(functional, "linear_cross_entropy") and len(labels):
        options = torch.nn.LinearCrossEntropyOptions()
        return functional.linear_cross_entropy(hidden, weight, labels, reduction="none", options=options)

    def part(states: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
        return functional.cross_entropy(_upcast(states @ weight.T), targets, reduction="none")

    pieces = [
        checkpoint(part, states, targets, use_reentrant=False)
        for states, targets in zip(hidden.split(chunk), labels.split(chunk), strict=True)
    ]
    return torch.cat(pieces)


def _sample_index(batch: Batch) -> tuple["torch.Tensor", "torch.Tensor"]:
    """(which sample each slot's prediction belongs to, targets per sample); pieces of a split sample are one sample."""
    import numpy as np
    import torch

    ids = torch.as_tensor(np.asarray(batch.sample_ids) if not torch.is_tensor(batch.sample_ids) else batch.sample_ids)
    unnamed = ids < 0
    ids = torch.where(unnamed, ids.max() + 1 + torch.arange(len(ids), device=ids.device), ids)
    sample_of_segment = ids.unique(return_inverse=True)[1]
    segment_ids = torch.as_tensor(batch.segment_ids).long().to(ids.device)
    # Slots of padding count as sample 0: they have no target, so they add nothing to it.
    owner = sample_of_segment[(segment_ids - 1).clamp(min=0)]
    has_target = torch.as_tensor(batch.shifted_labels()).to(ids.device) != IGNORED
    counts = torch.bincount(owner, weights=has_target.double(), minlength=int(sample_of_segment.max()) + 1)
    return owner, counts


def _denominator(batch: Batch, reduction: Reduction) -> float:
    if reduction == "per-token":
        return float(batch.num_targets)
    if reduction == "per-sample":
        return float((_sample_index(batch)[1] > 0).sum())
    return float(_weights_of(batch).sum())


def _weights_of(batch: Batch) -> Any:
    if batch.loss_weights is None:
        raise PadlessError("reduction='weighted' needs batch.loss_weights, and this batch has none")
    return batch.loss_weights


def _reduce(losses: "torch.Tensor", batch: Batch, reduction: Reduction, denominator: float | None) -> "torch.Tensor":
    import torch

    if reduction == "per-token":
        if batch.loss_weights is not None:
            raise PadlessError(
                "this batch carries loss_weights, which reduction='per-token' would ignore; "
                "say reduction='weighted' (or 'per-sample'), or collate without weights"
            )
        total = losses.sum()
    elif reduction == "per-sample":
        owner, counts = _sample_index(batch)
        total = (losses / counts.clamp(min=1).to(losses)[owner.to(losses.device)]).sum()
    elif reduction == "weighted":
        # A label's weight sits at the label; its prediction is made one position earlier.
        weights = torch.as_tensor(_weights_of(batch), device=losses.device).to(losses.dtype)
        total = (losses[:-1] * weights[1:]).sum()
    else:
        raise PadlessError(f"reduction={reduction!r} is unknown; give 'per-token', 'per-sample' or 'weighted'")
    over = _denominator(batch, reduction) if denominator is None else denominator
    if over <= 0:
        # No target in the whole step: the loss is zero and so is its gradient; 0 / 0 would poison the weights.
        return total * 0.0
    return total / over
