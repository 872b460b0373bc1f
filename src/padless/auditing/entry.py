"""`audit`: the one function that users call."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from padless.auditing.checks import CHECKS
from padless.auditing.report import AuditReport, CheckResult
from padless.errors import PadlessError, require

Progress = Callable[[str, CheckResult | None], None]


def audit(
    model: Any,
    collate: Callable[..., Any] | None = None,
    loss: Callable[..., Any] | None = None,
    *,
    checks: Iterable[str] | None = None,
    samples: Sequence[dict[str, Any]] | None = None,
    lengths: Sequence[int] | None = None,
    vocab_size: int | None = None,
    eod: int | None = None,
    call: Callable[[Any, Any], Any] | None = None,
    logits: Callable[[Any], Any] | None = None,
    count_argument: str | None = None,
    shift: int = 1,
    position_axes: int | None = None,
    seed: int = 0,
    name: str | None = None,
    progress: Progress | None = None,
) -> AuditReport:
    """Prove on a model that packed rows are treated like separate samples, or say what is wrong.

    The model's own forward runs, with its own collator and loss; nothing is left changed in it.

    Args:
        model: Any `nn.Module`.
        collate: `collate(samples) -> inputs`. Samples are dicts of `input_ids` and `labels` (unshifted, -100 where not
            trained), lists of ints. Inputs are a mapping with `input_ids` of shape `[T]` or `[rows, length]`, or a
            `Batch`. A collator with a `capacity` argument is asked for padded rows too. Default: one flat row with what
            the forward takes by name.
        loss: `loss(outputs, inputs)` (averaged over steps and ranks), or `loss(outputs, inputs, num_targets)` (told
            the global number of targets; summed). Default: `outputs.loss`.
        checks: Names of `CHECKS`; all by default.
        samples: Samples of your own, at least two; random ones of unequal lengths by default.
        lengths: Lengths of the random samples; let some exceed the model's attention window.
        vocab_size: Number of token ids; from the model's config or largest embedding by default.
        eod: End-of-document id; from the config by default.
        call: `call(model, inputs) -> outputs`; by default `model(**inputs)`, or `model(batch)`.
        logits: `logits(outputs) -> [..., V]`, one row per input slot.
        count_argument: Name of the forward argument that takes the global number of targets
            (Transformers: `"num_items_in_batch"`).
        shift: 1 for models that predict the next token, 0 for masked models.
        position_axes: Rotary position axes (M-RoPE); from the config by default.
        seed: Of samples and perturbations.
        name: Of the model in the report.
        progress: Called with a check's name and None when it starts, and with its result when it ends.

    Raises:
        PadlessError: For wrong use. A model that fails is no wrong use: its checks come out undecided.

    Example:
        >>> import torch
        >>> class Bigram(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.table = torch.nn.Embedding(80, 80)
        ...     def forward(self, input_ids):
        ...         return self.table(input_ids)
        >>> report = audit(Bigram(), checks=["isolation"])
        >>> report["isolation"].verdict, report.exit_code   # no token reads another: nothing to prove
        ('undecided', 3)
    """
    require("torch", extra="torch", feature="padless.audit")
    names = _chosen(checks)
    from padless.auditing.setup import prepare, require_module
    from padless.auditing.subject import awake, preserved

    require_module(model)

    with preserved(model), awake(model) as woken:
        context = prepare(
            model, collate=collate, loss=loss, samples=samples, lengths=lengths, vocab_size=vocab_size, eod=eod,
            call=call, logits=logits, count_argument=count_argument, shift=shift, position_axes=position_axes,
            seed=seed,
        )  # fmt: skip
        for check in names:
            if progress is not None:
                progress(check, None)
            result = _run(check, context)
            context.results[check] = result
            if progress is not None:
                progress(check, result)
    if "traps" in context.results:
        from padless.auditing.checks.traps import settle

        context.results["traps"] = settle(context.results["traps"], context.results)
    settings: dict[str, Any] = {"seed": seed, "lengths": [len(s["input_ids"]) for s in context.samples]}
    if woken:
        settings["zero_parameters_filled_while_auditing"] = woken
    return AuditReport(subject=name or type(model).__name__, results=tuple(context.results.values()), settings=settings)


def _chosen(checks: Iterable[str] | None) -> list[str]:
    if checks is None:
        return list(CHECKS)
    wanted = list(checks)
    unknown = [name for name in wanted if name not in CHECKS]
    if unknown or not wanted:
        raise PadlessError(f"unknown checks {', '.join(unknown) or '(none given)'}; there are {', '.join(CHECKS)}")
    return [name for name in CHECKS if name in wanted]


def _run(check: str, context: Any) -> CheckResult:
    """One check; a model that fails makes it undecided."""
    from padless.auditing.checks import find

    start = time.perf_counter()
    try:
        result = find(check)(context)
    except PadlessError as error:
        result = CheckResult(name=check, verdict="undecided", finding=str(error))
    return replace(result, seconds=time.perf_counter() - start)
