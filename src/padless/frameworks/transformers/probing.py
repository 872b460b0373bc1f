"""The probe: two tiny rows through the very model, to see that segments do not feel each other.

Three questions: does segment 2 stay put when segment 1 changes; does segment 1 stay put when segment 2 changes; and
does each segment come out as it does alone. The first two are answered to the bit, except in models with experts, where
the number of tokens per expert moves the rounding.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from padless.errors import PadlessError, ViolationError

LENGTHS = ((7, 9), (5, 11))  # two rows of 16
_ROUNDING = 32  # units in the last place of the largest logit: what a different order of summation may do
_ALONE = {torch.float64: 1e-4, torch.float32: 1e-3}  # relative; Transformers computes parts in float32 in either
_ALONE_LOW = 0.1  # bfloat16 and float16


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """How far outputs moved, relative to their size.

    Attributes:
        moved: Of one segment when the other changed; 0 in an isolated model.
        apart: Packed from alone, root mean square.
        tokens: How many tokens went through the model.
    """

    moved: float
    apart: float
    tokens: int


def probe(model: Any) -> ProbeResult:
    """Check a prepared model on two rows of two segments.

    Args:
        model: A prepared model on its device; it is left in the mode it was in.

    Raises:
        ViolationError: When segments feel each other, or differ from themselves alone; names the first layer where it
            shows.
        PadlessError: When the model cannot run a packed call at all.
    """
    tokens = _tokens(model)
    with _evaluation(model):
        try:
            packed = _packed(model, tokens)
        except PadlessError:
            raise
        except Exception as error:
            raise PadlessError(
                f"{type(model).__name__} cannot be packed: a packed call of {tokens.numel()} tokens raised "
                f"{type(error).__name__}: {error}"
            ) from error
        other = (tokens + 1) % _vocabulary(model)
        moved = 0.0
        for changed in (0, 1):
            mask = _segment_mask(changed, tokens.device)
            again = _packed(model, torch.where(mask, other, tokens))
            allowed = _allowed_movement(model, packed.dtype)
            difference = _largest(again - packed, ~mask) / (_largest(packed, ~mask) or 1.0)
            moved = max(moved, difference)
            if difference > allowed:
                layer = _first_leak(model, tokens, torch.where(mask, other, tokens), ~mask, allowed)
                raise ViolationError(
                    f"{type(model).__name__} leaks: changing one segment moved the other by {difference:.1e} of its "
                    f"size, first in {layer}; it cannot be packed as it is"
                )
        apart = _distance_from_alone(model, tokens, packed)
    if not apart <= _ALONE.get(packed.dtype, _ALONE_LOW):
        raise ViolationError(
            f"{type(model).__name__} is isolated but wrong: packed segments differ from the same segments alone by "
            f"{apart:.1e} of their size; positions or masks of this architecture do not survive packing"
        )
    return ProbeResult(moved=moved, apart=apart, tokens=tokens.numel())


def _tokens(model: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (len(LENGTHS), sum(LENGTHS[0]))
    tokens = torch.randint(3, _vocabulary(model), shape, generator=generator)
    return tokens.to(model.device)


def _vocabulary(model: Any) -> int:
    return min(model.config.get_text_config().vocab_size, 1 << 15)


def _segment_mask(which: int, device: torch.device) -> torch.Tensor:
    """Bool `[rows, length]`: the tokens of the first (0) or second (1) segment of each row."""
    at = torch.arange(sum(LENGTHS[0]))
    return torch.stack([(at < first) if which == 0 else (at >= first) for first, _ in LENGTHS]).to(device)


def _packed(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    lengths = torch.tensor([0, *(n for row in LENGTHS for n in row)])
    offsets = lengths.cumsum(0).int().to(tokens.device)
    longest = int(lengths.max())
    output = model(
        input_ids=tokens, cu_seq_lens_q=offsets, cu_seq_lens_k=offsets, max_length_q=longest, max_length_k=longest
    )
    return _states(output)


def _states(output: Any) -> torch.Tensor:
    for name in ("logits", "last_hidden_state"):
        if getattr(output, name, None) is not None:
            return getattr(output, name)
    return output[0]


def _distance_from_alone(model: Any, tokens: torch.Tensor, packed: torch.Tensor) -> float:
    """Root mean square of packed minus alone, relative to alone; the alone calls take Transformers' own masks."""
    off, size = 0.0, 0.0
    for row, lengths in enumerate(LENGTHS):
        start = 0
        for length in lengths:
            alone = _states(model(input_ids=tokens[row : row + 1, start : start + length]))[0]
            off += float((packed[row, start : start + length] - alone).double().square().sum())
            size += float(alone.double().square().sum())
            start += length
    return (off / (size or 1.0)) ** 0.5


def _allowed_movement(model: Any, dtype: torch.dtype) -> float:
    has_experts = any("expert" in name for name, _ in model.named_modules())
    return _ROUNDING * torch.finfo(dtype).eps if has_experts else 0.0


def _largest(values: torch.Tensor, where: torch.Tensor) -> float:
    return float(values[where].abs().max())


@contextmanager
def _evaluation(model: Any) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def _first_leak(model: Any, tokens: torch.Tensor, changed: torch.Tensor, watched: torch.Tensor, allowed: float) -> str:
    """Name of the first module, in the order of computing, whose output moved where nothing had changed."""
    before, after = (_record(model, each) for each in (tokens, changed))
    for name, output in before.items():
        comparable = name in after and after[name].shape == output.shape
        if comparable and _largest(after[name] - output, watched) > allowed * _largest(output, watched):
            return f"{name} ({type(model.get_submodule(name)).__name__})"
    return "a step between its layers"


def _record(model: Any, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    outputs: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Any:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, torch.Tensor) and first.shape[:2] == tokens.shape:
                outputs.setdefault(name, first.detach().clone())

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, module in model.named_modules() if name]
    try:
        _packed(model, tokens)
    finally:
        for handle in handles:
            handle.remove()
    return outputs
