"""Positions restart with each segment. Boundaries say where; positions only have to agree, they never decide."""

from typing import Any

import torch

from padless.errors import PadlessError
from padless.frameworks.transformers.boundaries import Boundaries

TEXT_AXES = 4  # [4, rows, length]: the text position, then time, height and width (Qwen-VL); 3 axes have no text row


def refuse_restarts(positions: torch.Tensor | None, mask: Any, *, known: bool = False) -> None:
    """Refuse an ordinary call whose positions look like a packed row.

    Args:
        positions: `[rows, length]`, or `[4, rows, length]`; others are not judged.
        mask: The call's mask. With a 2-D one, positions of padding mean nothing and are passed over; any other
            (4-D, or one per kind of layer) says by itself who sees whom, and nothing is judged.
        known: That the restart was seen already.

    Raises:
        PadlessError: When a real token's position does not follow its neighbour's.
    """
    if not known:
        text = text_positions(positions)
        ready_made = mask is not None and getattr(mask, "ndim", 0) != 2
        if text is None or text.shape[-1] < 2 or ready_made:
            return
        restarts = text.diff(dim=-1) != 1
        if mask is not None and mask.shape[-1] >= text.shape[-1]:
            real = mask[:, -text.shape[-1] :].to(restarts.device, torch.bool)
            restarts = restarts & real[:, 1:] & real[:, :-1]
        known = bool(restarts.any())
    if known:
        raise PadlessError(
            "position_ids restart inside a row but no boundaries came with the call: this looks like a packed row, and "
            "without boundaries its segments would see each other; pass cu_seq_lens_q and cu_seq_lens_k "
            "(PackedCollator makes them), or positions that count on"
        )


def text_positions(positions: torch.Tensor | None) -> torch.Tensor | None:
    """The `[rows, length]` text positions of any dialect; None where there are none."""
    if positions is None or positions.ndim == 2:
        return positions
    return positions[0] if positions.ndim == 3 and positions.shape[0] == TEXT_AXES else None


def packed_positions(
    positions: torch.Tensor | None, boundaries: Boundaries, *, rows: int, length: int, first: int
) -> torch.Tensor:
    """The positions of a packed call: made when not given, checked when given.

    Args:
        positions: What the caller gave; `[rows, length]` starting at 0 or at `first`, or several axes of it.
        boundaries: The call's segments.
        rows: Rows of the batch.
        length: Tokens per row.
        first: The position of a first token in this model: 0, or `padding_idx + 1` for RoBERTa and its kin.

    Raises:
        PadlessError: When positions and boundaries contradict each other.
    """
    expected = boundaries.positions.view(rows, length)
    text = text_positions(positions)
    if positions is None:
        return expected + first
    if text is None:
        return positions
    shift = (text.expand(rows, length) if text.shape[0] == 1 else text).to(expected.device) - expected
    if not bool((shift == 0).all()) and not bool((shift == first).all()):
        at = int((shift.reshape(-1) != 0).nonzero()[0])
        raise PadlessError(
            f"position_ids and cu_seq_lens_q disagree at token {at}: position {int(text.reshape(-1)[at])} where the "
            f"boundaries make it token {int(expected.reshape(-1)[at])} of its segment; one of the two describes other "
            "segments; positions restart at 0 in each"
        )
    return expected + first if positions.ndim == 2 else positions
