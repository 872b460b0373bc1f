"""The thing under audit: the user's own model, collator and loss, called exactly as training calls them.

Everything the checks do to the model goes through here, and everything is put back afterwards: training flags,
buffers, random state. Gradients are taken with `torch.autograd.grad`, so `.grad` fields are never touched.
"""

import contextlib
import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from padless.auditing.layout import Layout, locate
from padless.auditing.samples import Sample
from padless.errors import PadlessError

# float64 copies of models up to this many parameters are made on the CPU without asking.
PRECISE_PARAMETERS = 100_000_000


class FailedError(PadlessError):
    """The user's own code raised; the text says which and how, the cause is chained."""


class NoLossError(PadlessError):
    """No loss was given, and the model's outputs have none."""


@contextlib.contextmanager
def blamed_on(part: str) -> Iterator[None]:
    """Turn whatever the user's code raises into one line that names the part."""
    try:
        yield
    except (FailedError, NoLossError):
        raise
    except Exception as error:
        text = str(error).strip().splitlines() or [""]
        raise FailedError(f"{part} fails with {type(error).__name__}: {text[0][:200]}") from error


class Subject:
    """A model with the callables that feed it and read it.

    Args:
        model: Any `nn.Module`.
        collate: `collate(samples) -> inputs`; with a `capacity` parameter it can be asked for padded rows.
        call: `call(model, inputs) -> outputs`.
        logits: `logits(outputs) -> [..., V]`.
        loss: `loss(outputs, inputs)` or `loss(outputs, inputs, num_targets)`, or None for the model's own
            (`outputs.loss`).
        count_argument: Name of the forward argument that takes the global number of targets, or None.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        collate: Callable[..., Any],
        call: Callable[[Any, Any], Any],
        logits: Callable[[Any], torch.Tensor],
        loss: Callable[..., torch.Tensor] | None,
        count_argument: str | None,
    ):
        self.model = model
        self.collate_with = collate
        self.call = call
        self.logits_of = logits
        self.loss_with = loss
        self.count_argument = count_argument
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        first = next((p for p in model.parameters() if p.is_floating_point()), None)
        self.device = first.device if first is not None else torch.device("cpu")
        self.dtype = first.dtype if first is not None else torch.float32
        self.pads = "capacity" in _arguments(collate)
        self.loss_takes_count = loss is not None and "num_targets" in _arguments(loss)

    @property
    def counts(self) -> bool:
        """Whether the loss is told the number of targets of the whole global batch."""
        return self.count_argument is not None or self.loss_takes_count

    def accepts(self, argument: str) -> bool:
        """Whether the model's forward names this argument."""
        return argument in _arguments(self.model.forward)

    @property
    def takes_anything(self) -> bool:
        """Whether the model's forward has `**kwargs`, so that nobody can tell what it reads."""
        kinds = {p.kind for p in inspect.signature(self.model.forward).parameters.values()}
        return inspect.Parameter.VAR_KEYWORD in kinds

    def collate(self, samples: Sequence[Sample], **options: Any) -> Any:
        """The collator's inputs, on the model's device; samples are copied, for collators that edit them."""
        with blamed_on("the collator"):
            inputs = self.collate_with([copy.deepcopy(sample) for sample in samples], **options)
        return self._placed(inputs)

    def layout(self, inputs: Any, samples: Sequence[Sample]) -> Layout:
        """Where the samples lie in the inputs."""
        return locate(tokens_of(inputs).cpu().numpy(), samples)

    def run(self, inputs: Any, *, train: bool = False, seed: int = 0) -> Any:
        """One forward pass with a fixed seed; buffers that it changes are put back."""
        self.model.train(train)
        saved = [(buffer, buffer.clone()) for buffer in self.model.buffers()] if train else []
        _seed(self.device, seed)
        try:
            with blamed_on("the model"):
                return self.call(self.model, inputs)
        finally:
            with torch.no_grad():
                for buffer, value in saved:
                    if buffer.shape == value.shape:
                        buffer.copy_(value)

    def run_counting(self, inputs: Any, num_targets: int, *, train: bool = False) -> Any:
        """A forward pass that is told the global number of targets, if the model takes it."""
        if self.count_argument is None:
            return self.run(inputs, train=train)
        return self.run(with_entries(inputs, {self.count_argument: num_targets}), train=train)

    def logits(self, outputs: Any, slots: int) -> torch.Tensor:
        """`[slots, V]`, still on the graph.

        Raises:
            FailedError: When the outputs hold no logits, or not one row of them for each slot.
        """
        with blamed_on("reading the logits"):
            logits = self.logits_of(outputs)
        if not isinstance(logits, torch.Tensor) or logits.ndim < 2:
            raise FailedError("the outputs hold no logits; pass `logits=`, a function from outputs to [..., V]")
        if logits.numel() != slots * logits.shape[-1]:
            raise FailedError(
                f"logits of shape {tuple(logits.shape)} for {slots} input slots; expected one row per slot. "
                "Pass `logits=`, a function from outputs to [..., V]"
            )
        return logits.reshape(slots, logits.shape[-1])

    def loss(self, outputs: Any, inputs: Any, num_targets: int) -> torch.Tensor:
        """The loss as training takes it.

        Raises:
            NoLossError: When there is none.
        """
        if self.loss_with is None:
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
            if loss is None:
                raise NoLossError(
                    "no loss: the outputs have none; pass `loss=`, a function (outputs, inputs) -> scalar"
                )
            return loss
        with blamed_on("the loss"):
            if self.loss_takes_count:
                return self.loss_with(outputs, inputs, num_targets=num_targets)
            return self.loss_with(outputs, inputs)

    def gradients(self, loss: torch.Tensor) -> list[torch.Tensor]:
        """Gradients of the trainable parameters, zeros where the loss does not reach."""
        if not self.parameters:
            raise FailedError("no parameter requires gradients")
        if not loss.requires_grad:
            raise FailedError("the loss has no graph (it was computed without gradients)")
        with blamed_on("the backward pass"):
            found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        if all(g is None for g in found):
            raise FailedError("no parameter receives a gradient")
        return [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, found, strict=True)]

    def precise(self) -> "Subject | None":
        """The same subject in float64 on a copy of the model; None where that cannot be had."""
        size = sum(p.numel() for p in self.model.parameters())
        if self.device.type != "cpu" or size > PRECISE_PARAMETERS:
            return None
        if self.dtype == torch.float64:
            return self
        try:
            model = copy.deepcopy(self.model).to(torch.float64)
        except Exception:  # noqa: BLE001 - a model that cannot be copied is audited in its own dtype
            return None
        return Subject(
            model,
            collate=self.collate_with,
            call=self.call,
            logits=self.logits_of,
            loss=self.loss_with,
            count_argument=self.count_argument,
        )

    def _placed(self, inputs: Any) -> Any:
        if hasattr(inputs, "torch") and dataclasses.is_dataclass(inputs):
            return inputs.torch(self.device)  # pyright: ignore[reportAttributeAccessIssue]
        if not isinstance(inputs, Mapping) or "input_ids" not in inputs:
            kind = f"keys {', '.join(map(str, inputs))}" if isinstance(inputs, Mapping) else type(inputs).__name__
            raise FailedError(f"the collator returned {kind}; expected a mapping with `input_ids`, or a Batch")
        placed = {name: self._tensor(value) for name, value in inputs.items()}
        if not isinstance(placed["input_ids"], torch.Tensor):
            kind = type(placed["input_ids"]).__name__
            raise FailedError(
                f"the collator's input_ids are a {kind}; expected a tensor or array of shape [T] or [R, L]"
            )
        return placed

    def _tensor(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value)
        if not isinstance(value, torch.Tensor):
            return value
        dtype = self.dtype if value.is_floating_point() and self.dtype == torch.float64 else None
        return value.to(device=self.device, dtype=dtype)


@contextlib.contextmanager
def preserved(model: torch.nn.Module) -> Iterator[None]:
    """Put back training flags, buffers and the random state when done."""
    flags = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            for module, flag in flags:
                module.training = flag
            with torch.no_grad():
                for buffer, value in buffers:
                    if buffer.shape == value.shape:
                        buffer.copy_(value)


@contextlib.contextmanager
def awake(model: torch.nn.Module) -> Iterator[list[str]]:
    """Give all-zero parameters small random values while the audit runs; yields their names.

    A layer that starts at zero (an output projection, a gate, the second matrix of LoRA) hides whatever is behind it:
    a leak would show only after the first optimizer step. Values do not decide who sees whom, so filling them in makes
    the audit see the layers as training will.
    """
    # Parameters named "bias" add a constant; zero or not, they hide nothing.
    zero = [
        (name, p)
        for name, p in model.named_parameters()
        if p.is_floating_point() and p.numel() and not name.endswith("bias") and not bool(p.detach().any())
    ]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, p in zero:
            scale = 1 / max(p.shape[-1], 1) ** 0.5 if p.ndim >= 2 else 0.5
            p.copy_((torch.randn(p.shape, generator=generator) * scale).to(p))
    try:
        yield [name for name, _ in zero]
    finally:
        with torch.no_grad():
            for _, p in zero:
                p.zero_()


def _seed(device: torch.device, seed: int) -> None:
    """Seed the generators that a pass on this device may use; `torch.manual_seed` alone is slow without a GPU."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def tokens_of(inputs: Any) -> torch.Tensor:
    """The token ids of a mapping or a Batch."""
    return inputs["input_ids"] if isinstance(inputs, Mapping) else inputs.input_ids


def entry(inputs: Any, name: str) -> Any:
    """One entry of the inputs, or None."""
    return inputs.get(name) if isinstance(inputs, Mapping) else getattr(inputs, name, None)


def with_entries(inputs: Any, entries: Mapping[str, Any]) -> Any:
    """The same inputs with some entries replaced."""
    return {**inputs, **entries} if isinstance(inputs, Mapping) else dataclasses.replace(inputs, **entries)


def default_logits(outputs: Any) -> torch.Tensor:
    """The logits of a tensor, an output object, a mapping or a tuple."""
    if isinstance(outputs, torch.Tensor):
        return outputs
    if isinstance(outputs, Mapping) and "logits" in outputs:
        return outputs["logits"]
    logits = getattr(outputs, "logits", None)
    if logits is not None:
        return logits
    if isinstance(outputs, tuple):
        return next(item for item in outputs if isinstance(item, torch.Tensor) and item.ndim >= 2)
    raise FailedError(f"{type(outputs).__name__} has no logits; pass `logits=`, a function from outputs to [..., V]")


def default_call(model: Any, inputs: Any) -> Any:
    """Keyword arguments for mappings, one argument for a Batch."""
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def _arguments(function: Callable[..., Any]) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return frozenset()
