"""A batch in a few lines of text."""

from typing import Any

from padless.rows.tensors import host


def padding_of(batch: Any) -> tuple[int, int]:
    """`(alignment, tail)`: padding slots that round segments up, and all others."""
    lengths = host(batch.lengths)
    alignment = int((-lengths % batch.align).sum())
    return alignment, batch.num_slots - batch.num_tokens - alignment


def summarise(batch: Any) -> str:
    """Sizes, padding by cause, targets, the rule; see `Batch.summary`."""
    alignment, tail = padding_of(batch)
    share = (alignment + tail) / batch.num_slots
    lengths = host(batch.lengths)
    axes = batch.position_ids.shape[0] if len(batch.position_ids.shape) > 1 else 1
    spread = f"{lengths.min():,} to {lengths.max():,}"
    causes = f"{batch.num_tokens:,} real, {alignment:,} alignment, {tail:,} tail"
    lines = [
        f"rows       {batch.num_rows:,}, with {batch.num_segments:,} segments of {spread} tokens",
        f"slots      {batch.num_slots:,}: {causes} ({share:.1%} padding)",
        f"targets    {batch.num_targets:,}" + (", weighted" if batch.loss_weights is not None else ""),
        f"positions  {axes} {'axis' if axes == 1 else 'axes'}",
        f"rule       {repr(batch.rule).removeprefix('Rule(').removesuffix(')')}",
    ]
    if batch.targets_lost:
        lines.append(f"lost       {batch.targets_lost:,} target(s): first tokens of pieces of split samples")
    return "\n".join(lines)
