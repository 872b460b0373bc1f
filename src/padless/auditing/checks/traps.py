"""Static traps: what is known to go wrong, seen in the call and the model before anything runs.

A trap is no proof. Whether it does harm is decided by the checks that run the model; `settle` puts the two together.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch

from padless.auditing.context import Context
from padless.auditing.kinds import stateful_layers
from padless.auditing.naming import makes_cache
from padless.auditing.report import CheckResult
from padless.auditing.subject import entry

BOUNDARIES = ("cu_seqlens", "cu_seq_lens_q", "segment_ids", "seq_idx")
DECIDING = ("isolation", "gradients", "parity")


def check(context: Context) -> CheckResult:
    """List the traps; undecided while there are any and nothing has run."""
    traps = find(context)
    if not traps:
        return CheckResult(name="traps", verdict="proven", finding="none of the known traps is in the call")
    return CheckResult(
        name="traps",
        verdict="undecided",
        finding="; ".join(traps),
        measured=float(len(traps)),
        details={"traps": traps},
    )


def settle(result: CheckResult, others: Mapping[str, CheckResult]) -> CheckResult:
    """Decide about traps by what the other checks found."""
    traps = result.details.get("traps")
    if not traps:
        return result
    deciding = [others[name] for name in DECIDING if name in others]
    if any(other.verdict == "violated" for other in deciding):
        return replace(result, verdict="violated", mechanism="trap")
    if "isolation" in others and all(other.verdict == "proven" for other in deciding):
        return replace(result, verdict="proven", finding=f"harmless in this call: {result.finding}")
    return result


def find(context: Context) -> list[str]:
    """One sentence for each trap."""
    subject = context.subject
    inputs = subject.collate(context.samples)
    if not isinstance(inputs, Mapping):
        return []
    traps = []
    mask = entry(inputs, "attention_mask")
    if isinstance(mask, torch.Tensor) and mask.ndim == 2:
        if int(mask.max()) > 1:
            traps.append("a 2-D attention_mask holds segment ids; models cast it to true and false")
        else:
            traps.append("a 2-D attention_mask is passed; with one, models stop looking for boundaries")
    elif isinstance(mask, torch.Tensor) and mask.ndim == 1:
        traps.append("attention_mask is a vector; only patched models read boundaries from it")
    if makes_cache(subject, inputs):
        traps.append("use_cache is on: a cache is made, and with one, models stop looking for boundaries")
    ids = inputs["input_ids"]
    given = [name for name in BOUNDARIES if entry(inputs, name) is not None]
    if ids.ndim == 2 and ids.shape[0] > 1 and not given:
        traps.append(f"{ids.shape[0]} rows without explicit boundaries: flash kernels infer them for one row only")
    positions = entry(inputs, "position_ids")
    if (
        context.position_axes
        and positions is not None
        and positions.numel() // ids.numel() != context.position_axes + 1
    ):
        have = positions.numel() // ids.numel()
        traps.append(
            f"position_ids have {have} axes; a model with {context.position_axes} rotary axes wants "
            f"{context.position_axes}, and one more for the text to find boundaries"
        )
    if not subject.takes_anything:
        ignored = [name for name in given if not subject.accepts(name)]
        traps += [f"{name} is passed, and the model's forward has no such argument" for name in ignored]
    layers = stateful_layers(subject.model)
    if (layers.get("state") or layers.get("convolution")) and "seq_idx" not in given:
        traps.append("there are recurrent or convolutional layers, and no seq_idx is passed")
    return traps
