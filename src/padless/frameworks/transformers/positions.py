"""Positions restart with each segment. Boundaries say where; positions only have to agree, they never decide."""

from typing import Any

import torch

from padless.errors import PadlessError
from padless.frameworks.transformers.boundaries import Boundaries

MEDIA_AXES = 3  # [3, rows, length]: time, height and width (Qwen-VL), without the text position
TEXT_AXES = 4  # [4, rows, length]: the text position in front of them


def refuse_restarts(positions: torch.Tensor | None, mask: Any, *, known: bool = False) -> None:
    """Refuse an ordinary call whose positions look like a packed row.

    Args:
        positions: `[rows, length]`, `[4, rows, length]` or `[3, rows, length]`; others are not judged.
        mask: The call's mask. With a 2-D one, positions of padding mean nothing and are passed over; any other
            (4-D, or one per kind of layer) says by itself who sees whom, and nothing is judged.
        known: That the restart was seen already.

    Raises:
        PadlessError: When a real token's position does not follow its neighbour's.
    """
    if not known:
        restarts = _restarts(positions)
        ready_made = mask is not None and getattr(mask, "ndim", 0) != 2
        if restarts is None or not restarts.shape[-1] or ready_made:
            return
        if mask is not None and mask.shape[-1] > restarts.shape[-1]:
            real = mask[:, -restarts.shape[-1] - 1 :].to(restarts.device, torch.bool)
            restarts = restarts & real[:, 1:] & real[:, :-1]
        known = bool(restarts.any())
    if known:
        raise PadlessError(
            "position_ids restart inside a row but no boundaries came with the call: this looks like a packed row, and "
            "without boundaries its segments would see each other; pass cu_seq_lens_q and cu_seq_lens_k "
            "(PackedCollator makes them), or positions that count on"
        )


def refuse_segment_masks(mask: Any) -> None:
    """Refuse a 2-D mask of segment numbers (1, 1, 2, 2, 0): models cast it to true and false, and segments leak.

    Raises:
        PadlessError: When a 2-D mask of whole numbers holds anything above 1.
    """
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2 or mask.is_floating_point() or not mask.numel():
        return
    if int(mask.max()) > 1:
        raise PadlessError(
            f"a 2-D attention_mask holds {int(mask.max())}: segment numbers in a mask are read as true and false, so "
            "segments would see each other; pass cu_seq_lens_q and cu_seq_lens_k instead, and no mask"
        )


def _restarts(positions: torch.Tensor | None) -> torch.Tensor | None:
    """Where a token does not follow its neighbour on the left: bool `[rows, length - 1]`; None when nothing says."""
    text = text_positions(positions)
    if text is not None:
        return text.diff(dim=-1) != 1
    if positions is None or positions.ndim != 3 or positions.shape[0] != MEDIA_AXES:
        return None
    # Inside a sample no axis order is certain (images spread, videos run ahead), but only a first token is at 0, 0, 0.
    return (positions == 0).all(dim=0)[:, 1:]


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
        _check_first_tokens(positions, boundaries)
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


def _check_first_tokens(positions: torch.Tensor, boundaries: Boundaries) -> None:
    """Positions without a text axis can be held to one thing: every segment starts at 0 on all axes."""
    starts = torch.tensor([s for s, n in zip(boundaries.offsets, boundaries.lengths, strict=False) if n])
    first = positions.flatten(1)[:, starts.to(positions.device)] if positions.ndim == 3 else None
    if first is not None and first.shape[0] == MEDIA_AXES and bool((first != 0).any()):
        at = int(starts[(first != 0).any(dim=0).cpu()][0])
        raise PadlessError(
            f"position_ids of {MEDIA_AXES} axes are not 0 at token {at}, where cu_seq_lens_q starts a segment: they "
            "were made for other segments, or for the row as a whole; make them for each sample alone"
        )
