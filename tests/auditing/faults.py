"""The planted faults: for each, a wrong model or collator, its right twin, and what the audit must call it."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.nn import functional

from padless.auditing import AuditReport, audit

from .toys import Collator, Design, Toy

EMIT = ("position_ids", "segment_ids", "labels")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One planted fault.

    Attributes:
        check: The check that must find it.
        mechanism: How it must be called.
        design: The wrong model; its twin has `twin_design`, or the same without its fault.
        collator: The wrong collator; its twin has `twin_collator`, or the same without its fault.
        count_argument: Forward argument for the global number of targets; the twin always has one.
    """

    check: str
    mechanism: str
    design: Design = field(default_factory=Design)
    collator: Collator = field(default_factory=Collator)
    twin_design: Design | None = None
    twin_collator: Collator | None = None
    count_argument: str | None = "num_items"

    def report(self, seed: int, dtype: torch.dtype, *, twin: bool = False, **options: Any) -> AuditReport:
        design, collator, count = self.design, self.collator, self.count_argument
        if twin:
            design = self.twin_design or replace(design, fault="")
            collator = self.twin_collator or replace(collator, fault="")
            count = "num_items"
        model = Toy(design, seed).to(dtype)
        return audit(model, collator, count_argument=count, seed=seed, **options)


def _model(check: str, mechanism: str, fault: str, **design: Any) -> Fault:
    return Fault(check=check, mechanism=mechanism, design=Design(fault=fault, **design))


def _collator(check: str, mechanism: str, fault: str, design: Design | None = None, **collator: Any) -> Fault:
    return Fault(
        check=check, mechanism=mechanism, design=design or Design(), collator=Collator(fault=fault, **collator)
    )


LEARNED = Design(positions="learned")
STATE = ("state", "attention")

FAULTS: dict[str, Fault] = {
    "no mask": _model("isolation", "no-segment-mask", "no-mask"),
    "mask upper-left where bottom-right is due": _model("parity", "upper-left-mask", "upper-left", memory=True),
    "boundary off by one": _model("isolation", "boundary-off-by-one", "off-by-one"),
    "positions not reset on a learned-position model": _collator(
        "positions", "positions-not-reset", "positions-run-on", LEARNED
    ),
    "no positions passed to a learned-position model": Fault(
        check="positions",
        mechanism="positions-not-reset",
        design=LEARNED,
        collator=Collator(emit=("segment_ids", "labels")),
        twin_collator=Collator(),
    ),
    "cross-boundary label": _collator("targets", "cross-boundary-label", "cross-boundary-label"),
    "double shift": _collator("targets", "double-shift", "double-shift"),
    "lost EOD: masked by pad id": _collator("targets", "lost-eod", "masks-by-pad-id"),
    "lost EOD: cut from the row": _collator("targets", "lost-eod", "drops-last-token"),
    "padding in the loss": _collator("targets", "padding-in-loss", "padding-in-loss"),
    "prompts trained": _collator("targets", "prompt-in-loss", "prompt-trained"),
    "mean of means": Fault(check="denominator", mechanism="mean-of-means", count_argument=None),
    "SSM state carried over": _model("state", "state-carried-over", "state", mixers=STATE),
    "convolution crossing a boundary": _model(
        "state", "convolution-crosses-boundary", "convolution", mixers=("convolution", "attention")
    ),
    "all-ones 2-D mask disables detection": Fault(
        check="isolation",
        mechanism="mask-disables-detection",
        design=Design(boundaries="no-mask-given"),
        collator=Collator(emit=(*EMIT, "attention_mask")),
        twin_collator=Collator(),
    ),
    "cache object present": Fault(
        check="isolation",
        mechanism="cache-disables-detection",
        design=Design(boundaries="no-cache", use_cache=True),
        twin_design=Design(boundaries="no-cache"),
    ),
    "wrong window": _model("parity", "wrong-window", "wrong-window", window=5),
    "attention over padding": _model("padding", "attends-padding", "attends-padding"),
    "MoE auxiliary loss over padding": _model(
        "padding", "aux-loss-counts-padding", "aux-padding", mixers=("attention", "experts")
    ),
    "M-RoPE positions as one axis": _collator(
        "positions", "position-axes", "one-axis", Design(positions="axes"), axes=3
    ),
    "seq_idx missing": Fault(
        check="state",
        mechanism="missing-seq-idx",
        design=Design(boundaries="seq-idx", mixers=STATE),
        twin_collator=Collator(emit=(*EMIT, "seq_idx")),
    ),
    "leak of 1e-3 relative size": _model("isolation", "no-segment-mask", "small-leak"),
    "leak only from the last segment to the first": _model("isolation", "segments-mix", "last-to-first"),
    "leak only in one layer": _model(
        "isolation", "no-segment-mask", "no-mask", mixers=("attention",) * 3, only_layer=1
    ),
    "leak only in rows of three or more segments": _model("isolation", "no-segment-mask", "three-segments"),
    "batch norm": _model("state", "batch-statistics", "batch-norm", mixers=("attention", "norm")),
    "state between calls": _model("state", "state-between-calls", "remembers", mixers=("attention", "remembering")),
}


def own_loss(outputs: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """A loss as many training loops write it."""
    labels = functional.pad(inputs["labels"][0], (0, 1), value=-100)[1:]
    return functional.cross_entropy(outputs.logits[0], labels)
