"""Who sees whom inside a segment, read from gradients: tells a wrong window from a wrong alignment."""

from typing import Any

import torch

from padless.auditing.context import Context
from padless.auditing.layout import Layout
from padless.auditing.noise import replaced_output
from padless.auditing.recorder import as_slots
from padless.auditing.subject import FailedError


def compare_visibility(context: Context, which: int) -> str:
    """The mechanism by which a packed sample sees other tokens of its own than alone; `outputs-differ` if none."""
    try:
        packed = visible(context, context.inputs, context.layout, context.layout.spans[which])
        inputs, layout = context.alone(which)
        alone = visible(context, inputs, layout, layout.spans[0])
    except FailedError:
        return "outputs-differ"
    return name_difference(packed, alone)


def name_difference(packed: torch.Tensor, alone: torch.Tensor) -> str:
    """Name the difference of two `[n, n]` visibilities (query, key)."""
    difference = packed ^ alone
    if not bool(difference.any()):
        return "outputs-differ"
    query, key = torch.nonzero(difference, as_tuple=True)
    if bool((packed & difference)[query, key].any()) and bool((key > query)[(packed & difference)[query, key]].any()):
        return "not-causal"
    missing = alone & ~packed
    rows = torch.nonzero(missing.any(dim=1)).flatten().tolist()
    # Upper-left alignment takes away the nearest keys and keeps far ones; a window takes or gives the farthest.
    nearest = [bool(missing[i, i - 1]) for i in rows if i > 0]
    return "upper-left-mask" if nearest and all(nearest) else "wrong-window"


def visible(context: Context, inputs: Any, layout: Layout, span: tuple[int, int]) -> torch.Tensor:
    """`[n, n]` bool: whether the logits of slot i of a span depend on the embedding of its slot j."""
    if context.embedding is None:
        raise FailedError("no embedding to differentiate by")
    leaves: list[torch.Tensor] = []

    def leaf(output: torch.Tensor) -> torch.Tensor:
        leaves.append(output.detach().requires_grad_(True))
        return leaves[-1]

    subject = context.reference
    with torch.enable_grad(), replaced_output(context.embedding, leaf):
        logits = subject.logits(subject.run(inputs), layout.slots)
    weights = torch.randn(logits.shape[1], generator=torch.Generator().manual_seed(context.seed)).to(logits)
    rows = []
    for slot in range(*span):
        (grad,) = torch.autograd.grad((logits[slot] * weights).sum(), leaves, retain_graph=True, allow_unused=True)
        by_slot = None if grad is None else as_slots(grad, layout.rows, layout.length)
        if by_slot is None:
            raise FailedError("the embeddings receive no gradient")
        rows.append((by_slot[span[0] : span[1]] != 0).any(dim=1).cpu())
    return torch.stack(rows)
