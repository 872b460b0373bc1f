"""From a leak to its cause: what-if runs first, the kind of the layer second, the pattern of the leak third."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from padless.auditing.carrying import carried_between_calls
from padless.auditing.context import Context
from padless.auditing.kinds import kind_of
from padless.auditing.recorder import Move, first_move
from padless.auditing.scan import Scan, scan
from padless.auditing.subject import Subject, entry, with_entries
from padless.errors import PadlessError

_BY_KIND = {
    "batch-norm": "batch-statistics",
    "convolution": "convolution-crosses-boundary",
    "state": "state-carried-over",
    "experts": "experts-mix",
}

Edit = Callable[[Any], Any]


def name_leak(context: Context, subject: Subject, found: Scan, *, train: bool) -> str:
    """The mechanism code of a leak that was found."""
    moved, noise = carried_between_calls(context, subject)
    if moved > noise:
        return "state-between-calls"
    for mechanism, edit in _what_ifs(context, subject):
        if _clean_after(context, subject, found, edit, train):
            return mechanism
    kind = kind_of(subject.model, found.move.module) if found.move else ""
    if kind in _BY_KIND:
        return _BY_KIND[kind]
    if found.move is not None and _one_token(context, subject, found, found.move, train):
        return "boundary-off-by-one"
    count = len(context.samples)
    order = _row_order(context, subject)
    earlier = {(a, b) for i, a in enumerate(order) for b in order[i + 1 :]}
    pairs = set(found.pairs)
    everyone = {(a, b) for a in range(count) for b in range(count) if a != b}
    return "no-segment-mask" if pairs in (earlier, everyone) else "segments-mix"


def _what_ifs(context: Context, subject: Subject) -> list[tuple[str, Edit]]:
    """Changes to the call that would cure a leak of a known cause."""
    inputs = subject.collate(context.samples)
    if not isinstance(inputs, Mapping):
        return []
    edits: list[tuple[str, Edit]] = []
    mask = entry(inputs, "attention_mask")
    drop: Edit = lambda given: {k: v for k, v in given.items() if k != "attention_mask"}  # noqa: E731
    no_cache: Edit = lambda given: with_entries(given, {"use_cache": False})  # noqa: E731
    has_mask = isinstance(mask, torch.Tensor) and mask.ndim <= 2
    if has_mask:
        edits.append(("mask-disables-detection", drop))
    if makes_cache(subject, inputs):
        edits.append(("cache-disables-detection", no_cache))
        if has_mask:
            edits.append(("mask-disables-detection", lambda given: no_cache(drop(given))))
    if entry(inputs, "seq_idx") is None and (subject.accepts("seq_idx") or subject.takes_anything):
        layout = subject.layout(inputs, context.samples)
        ids = torch.from_numpy(layout.segment_ids).reshape(layout.rows, layout.length).to(torch.int32)
        edits.append(("missing-seq-idx", lambda given: with_entries(given, {"seq_idx": ids.to(subject.device)})))
    return edits


def makes_cache(subject: Subject, inputs: Any) -> bool:
    """Whether the call makes a cache object, as far as can be said without running it."""
    given = entry(inputs, "use_cache")
    if given is not None:
        return bool(given)
    config = getattr(subject.model, "config", None)
    configs = [config, getattr(config, "text_config", None)]
    takes = subject.accepts("use_cache") or subject.takes_anything
    return takes and any(bool(getattr(each, "use_cache", False)) for each in configs)


def _clean_after(context: Context, subject: Subject, found: Scan, edit: Edit, train: bool) -> bool:
    sources = (found.culprit[0],) if found.culprit else None
    try:
        after = scan(context, subject, stage="what if", train=train, draws=1, edit=edit, sources=sources)
    except PadlessError:
        return False
    return not after.leaky and after.finite and after.move is None


def _row_order(context: Context, subject: Subject) -> list[int]:
    layout = subject.layout(subject.collate(context.samples), context.samples)
    return sorted(range(len(context.samples)), key=lambda i: layout.spans[i])


def _one_token(context: Context, subject: Subject, found: Scan, move: Move, train: bool) -> bool:
    """Whether, where it first shows, one edge token alone crosses one boundary.

    Either only the token next to the boundary moves, or only the token next to it on the other side moves others.
    """
    assert found.culprit is not None
    layout = subject.layout(subject.collate(context.samples), context.samples)
    order = _row_order(context, subject)
    ids = torch.from_numpy(layout.segment_ids)
    one = [i for i, span in enumerate(layout.spans) if span[1] - span[0] == 1]
    long_sources = [i for i in order if i not in one]
    target_edge = source_edge = True
    seen_any = False
    base = context.see(subject, subject.collate(context.samples), layout=layout, train=train)
    for source in long_sources:
        others = (ids != source + 1) & (ids != 0)
        whole = _first(context, subject, base, source, slice(None), others, layout, train)
        if whole is None or whole.module != move.module or whole.child != move.child:
            continue
        seen_any = True
        start, stop = layout.spans[source]
        edges = {start - 1, stop}
        target_edge &= set(whole.slots) <= edges
        for rest in (slice(0, -1), slice(1, None)):
            part = _first(context, subject, base, source, rest, others, layout, train)
            if part is None or (part.module, part.child) != (whole.module, whole.child):
                break
        else:
            source_edge = False
    return seen_any and (target_edge or source_edge)


def _first(context, subject, base, source, positions, others, layout, train) -> Move | None:
    samples = context.perturbed(source, 0, positions)
    seen = context.see(subject, subject.collate(samples), layout=layout, train=train)
    return first_move(base.trace, seen.trace, others)
