"""`prepare`: one call that makes a Transformers model right for packed rows, or says why it cannot be."""

import dataclasses
from typing import Any, Literal

from padless.frameworks.transformers.architecture import inspect_model
from padless.frameworks.transformers.attention import NAME, SCOPE, register
from padless.frameworks.transformers.gate import install_gate
from padless.frameworks.transformers.media_layouts import media_layout
from padless.frameworks.transformers.probing import ProbeResult, probe
from padless.frameworks.transformers.segmentwise import isolate
from padless.frameworks.transformers.towers import pack_towers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """What `prepare` did.

    Attributes:
        model: Class of the model.
        attention: The attention implementation in use: `padless`, or the model's own where it has no choice.
        own_mixers: Layers that mix tokens by code of their own, and are now run by `stateful`.
        stateful: How they are run.
        towers: Vision towers whose frames and windows now go through attention in one call.
        notes: What is special about the architecture.
        probe: What the probe measured; None when it was switched off.
    """

    model: str
    attention: str
    own_mixers: tuple[str, ...]
    stateful: str
    towers: tuple[str, ...]
    notes: tuple[str, ...]
    probe: ProbeResult | None

    def __str__(self) -> str:
        lines = [f"{self.model}: attention {self.attention}"]
        if self.own_mixers:
            lines.append(f"{len(self.own_mixers)} layers run {self.stateful}: {', '.join(self.own_mixers[:3])}, ...")
        if self.towers:
            lines.append(f"vision towers in one varlen call per layer: {', '.join(self.towers)}")
        lines.extend(self.notes)
        if self.probe is not None:
            lines.append(f"isolated: a segment moves by {self.probe.moved:.0e} when the other changes")
        return "\n".join(lines)


def prepare(model: Any, *, stateful: Literal["segmentwise", "fused"] = "segmentwise", check: bool = True) -> Prepared:
    """Make a model ready for packed rows, in place, and prove it on 32 tokens.

    Packed calls then need `cu_seq_lens_q` and `cu_seq_lens_k` (see `PackedCollator`); calls without them stay what they
    were, padded batches and generation included. What a packed call cannot do right raises instead of leaking.

    Args:
        model: A `PreTrainedModel`, or a PEFT model around one.
        stateful: For state-space, linear-attention and convolution layers: `"segmentwise"` runs them on one segment at
            a time, exact everywhere; `"fused"` passes `seq_idx` and `cu_seq_lens_q` to GPU kernels that know them.
        check: Run the probe. Without it nothing stands between an architecture nobody has tried and a leak.

    Returns:
        What was found and done.

    Raises:
        PadlessError: When the architecture cannot be packed; names the layer or the part, and the reason.
        ViolationError: When the probe finds a leak.

    Example:
        >>> from padless.frameworks.tiny_models import tiny_model
        >>> report = prepare(tiny_model("llama"))
        >>> report.attention, report.probe.moved
        ('padless', 0.0)
    """
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    architecture = inspect_model(model)
    register()
    decoder = architecture.decoder
    if decoder.config._attn_implementation != NAME and decoder._can_set_attn_implementation():
        decoder.set_attn_implementation(NAME)
    for name in architecture.own_mixers:
        isolate(decoder.get_submodule(name), stateful)
    towers = pack_towers(model, decoder)
    for module in decoder.modules():
        setattr(module, SCOPE, True)
    for config in (model.config, decoder.config):
        if getattr(config, "use_cache", None):
            config.use_cache = False
    for module in {id(m): m for m in (model, model.base_model, decoder)}.values():
        install_gate(module, first_position=architecture.first_position, layout=media_layout(model))
    return Prepared(
        model=type(model).__name__,
        attention=decoder.config._attn_implementation or "eager",
        own_mixers=architecture.own_mixers,
        stateful=stateful,
        towers=towers,
        notes=architecture.notes,
        probe=probe(model) if check else None,
    )
