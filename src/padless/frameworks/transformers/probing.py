"""The probe: two tiny rows through the very model, to see that segments do not feel each other.

Three questions: does segment 2 stay put when segment 1 changes; does segment 1 stay put when segment 2 changes; and
does each segment come out as it does alone. The first two are answered to the bit. In models with experts the number of
tokens per expert moves the rounding of all that follows, so there each part without experts is asked by itself.
"""

import dataclasses
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from padless.errors import PadlessError, ViolationError
from padless.frameworks.transformers.leaks import first_leak, has_experts, largest, leaking_part

LENGTHS = ((7, 9), (5, 11))  # two rows of 16
_ROUNDING = 32  # units in the last place of the largest logit: what a different order of summation may do
_ALONE = {torch.float64: 1e-4, torch.float32: 1e-3}  # relative; Transformers computes parts in float32 in either
_ALONE_LOW = {False: 0.1, True: 0.5}  # bfloat16 and float16; with experts, rounding sends tokens to other experts


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
        moved, allowed = 0.0, _allowed_movement(model, packed.dtype)
        for changed in (0, 1):
            mask = _segment_mask(changed, tokens.device)
            again = _packed(model, torch.where(mask, other, tokens))
            difference = largest(again - packed, ~mask) / (largest(packed, ~mask) or 1.0)
            moved = max(moved, difference)
            if not difference <= allowed:  # NaN is no answer
                run = functools.partial(_packed, model)
                layer = first_leak(model, run, tokens, torch.where(mask, other, tokens), ~mask, allowed)
                raise ViolationError(
                    f"{type(model).__name__} leaks: changing one segment moved the other by {difference:.1e} of its "
                    f"size, first in {layer}; it cannot be packed as it is"
                )
            layer = leaking_part(model, lambda: _packed(model, tokens), mask) if allowed else None
            if layer is not None:
                raise ViolationError(
                    f"{type(model).__name__} leaks: changing one segment moved the other, first in {layer}; it "
                    "cannot be packed as it is"
                )
        apart = _distance_from_alone(model, tokens, packed)
    if not apart <= _ALONE.get(packed.dtype, _ALONE_LOW[allowed > 0.0]):
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
    return _ROUNDING * torch.finfo(dtype).eps if any(map(has_experts, model.named_modules())) else 0.0


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
