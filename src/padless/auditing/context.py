"""What the checks share: the subject, its float64 twin, the samples, and measurements made once."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from padless.auditing.layout import Layout
from padless.auditing.noise import Noise, disturbance, disturbed, find_embedding, replaced_output, roundoff
from padless.auditing.recorder import Trace, recording
from padless.auditing.report import CheckResult
from padless.auditing.samples import Sample, perturb
from padless.auditing.subject import FailedError, Subject


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One forward pass: logits `[slots, V]` without graph, and what went through the modules."""

    logits: torch.Tensor
    trace: Trace


@dataclass(kw_only=True)
class Context:
    """State of one audit.

    Attributes:
        subject: The model as the user has it.
        samples: What is packed.
        ordinary: Token ids that a perturbation may write, sorted.
        frozen: Token ids that it may not replace.
        eod: Id of the end-of-document token, or None.
        shift: How far left of its target a prediction stands: 1 for causal models, 0 for masked ones.
        position_axes: Position axes that the model rotates by (M-RoPE), or None where it has one.
        seed: Of the perturbations.
        results: Results of the checks that ran before.
    """

    subject: Subject
    samples: list[Sample]
    ordinary: np.ndarray
    frozen: frozenset[int]
    eod: int | None
    shift: int
    position_axes: int | None
    seed: int
    results: dict[str, CheckResult] = field(default_factory=dict)

    @cached_property
    def precise(self) -> Subject | None:
        """The float64 twin, if it can be had and runs; the subject itself when it is float64 already."""
        twin = self.subject.precise()
        if twin is None or twin is self.subject:
            return twin
        try:
            self.see(twin, twin.collate(self.samples))
        except FailedError:
            return None
        return twin

    @property
    def reference(self) -> Subject:
        """Where comparisons between differently shaped passes are made: in float64, if that can be had."""
        return self.precise or self.subject

    @cached_property
    def inputs(self) -> Any:
        """The packed row of the reference."""
        return self.reference.collate(self.samples)

    @cached_property
    def layout(self) -> Layout:
        """Where the samples lie in it."""
        return self.reference.layout(self.inputs, self.samples)

    @cached_property
    def embedding(self) -> torch.nn.Module | None:
        """The reference's token embedding, if there is a module for it."""
        return find_embedding(self.reference, self.inputs)

    @cached_property
    def noise(self) -> Noise:
        """The reference's noise on the packed row."""
        return self.measure_noise(self.reference, self.inputs)

    def perturbed(self, which: int, draw: int, positions: slice = slice(None)) -> list[Sample]:
        """The samples with all tokens of one replaced; the same for the same arguments."""
        rng = np.random.default_rng((self.seed, which, draw))
        return perturb(self.samples, which, rng=rng, ordinary=self.ordinary, frozen=self.frozen, positions=positions)

    def see(
        self, subject: Subject, inputs: Any, *, layout: Layout | None = None, train: bool = False, seed: int = 0
    ) -> Seen:
        """Run once without gradients and look at everything."""
        layout = layout or subject.layout(inputs, self.samples)
        with torch.no_grad(), recording(subject.model, rows=layout.rows, length=layout.length) as trace:
            outputs = subject.run(inputs, train=train, seed=seed)
        return Seen(logits=subject.logits(outputs, layout.slots).detach().clone(), trace=trace)

    def measure_noise(self, subject: Subject, inputs: Any) -> Noise:
        """Repetition, roundoff and sensitivity of a subject."""
        base = self.see(subject, inputs)
        # Other seeds, so that dropout which stays on in evaluation counts as the noise that it is.
        repetition = max(_largest(self.see(subject, inputs, seed=s).logits - base.logits) for s in (1, 2))
        eps = roundoff(subject, inputs)
        embedding = self.embedding if subject is self.reference else find_embedding(subject, inputs)
        # Without an embedding to disturb, three times the logits' own size stands in for the response.
        sensitivity = 3 * _largest(base.logits)
        if embedding is not None:
            size = disturbance(eps)
            generator = torch.Generator().manual_seed(self.seed)
            responses = []
            for _ in range(3):
                with replaced_output(embedding, disturbed(generator, size)):
                    responses.append(_largest(self.see(subject, inputs).logits - base.logits) / size)
            sensitivity = max(responses)
        sites = sum(1 for _, side, _ in base.trace.events if side == "out")
        return Noise(eps=eps, sites=sites, repetition=repetition, sensitivity=sensitivity)

    def alone(self, which: int, subject: Subject | None = None) -> tuple[Any, Layout]:
        """The inputs of one sample alone, made by the same collator."""
        subject = subject or self.reference
        samples = [self.samples[which]]
        inputs = subject.collate(samples)
        return inputs, subject.layout(inputs, samples)


def _largest(x: torch.Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0
