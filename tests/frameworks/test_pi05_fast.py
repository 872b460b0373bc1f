"""pi0-FAST, one expert and a prefix-LM: rows of real tokens equal the padded model. And conditions per token."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from padless.attention import varlen_attention
from padless.errors import PadlessError
from padless.frameworks.pi05 import block_rows, padding_free
from padless.frameworks.pi05.parts import AdaptiveNorm, ExpertLayer, Tower, attend, rotate
from padless.frameworks.pi05.small import SmallConfig, SmallPolicy, small_samples
from padless.frameworks.pi05.views import embed_views
from padless.masks.calls import varlen_calls

VOCABULARY, WIDTH = 40, 32


class Fast(nn.Module):
    """Views, then text of prompt and FAST tokens; prompt tokens see each other, FAST tokens what is before them."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = Tower(image=16, patch=8, width=16, hidden=32, heads=2, depth=1, output=WIDTH)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(ExpertLayer(WIDTH, 64, 4, 8, None) for _ in range(2))
        self.norm = AdaptiveNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def decode(self, x: torch.Tensor, positions: torch.Tensor, attention) -> torch.Tensor:
        for layer in self.layers:
            (q, k, v), gate = layer.before(x, None)
            x = layer.after(x, attention(rotate(q, positions), rotate(k, positions), v), None, gate)
        return self.head(self.norm(x)[0])

    def padded(self, images, masks, tokens, real, starts, targets) -> torch.Tensor:
        """As openpi: every slot encoded, `cumsum(real) - 1`, a dense mask."""
        views = [self.tower(image) for image in images]
        x = torch.cat([*views, self.embed(tokens)], dim=1)
        seen = [mask[:, None].expand(view.shape[:2]) for mask, view in zip(masks, views, strict=True)]
        there = torch.cat([*seen, real], dim=1)
        ranks = torch.cat([torch.zeros_like(torch.cat(seen, 1), dtype=torch.long), starts], dim=1).cumsum(1)
        dense = (ranks[:, None] <= ranks[:, :, None]) & there[:, None]
        logits = self.decode(x, there.cumsum(1) - 1, lambda q, k, v: attend(q, k, v, dense))[:, -tokens.shape[1] :]
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        return (loss * targets[:, 1:].flatten()).sum() / targets[:, 1:].sum()

    def packed(self, images, masks, tokens, real, starts, targets) -> torch.Tensor:
        views = embed_views(self.tower, images, masks)
        slots = views.features.shape[1]
        x = torch.cat([views.features, self.embed(tokens)], dim=1)
        blank = torch.zeros(views.real.shape, dtype=torch.long)
        batch, index = block_rows(
            torch.cat([views.real, real], dim=1),
            torch.cat([blank, starts], dim=1),
            tokens=torch.cat([blank, tokens], dim=1),
            targets=torch.cat([blank, targets.long()], dim=1),
        )
        assert slots == blank.shape[1]
        assert [call.causal for call in varlen_calls(batch)] == [False, True]
        row = x.flatten(0, 1)[torch.from_numpy(index)][None]
        positions = torch.from_numpy(batch.position_ids)[None]
        logits = self.decode(row, positions, lambda q, k, v: varlen_attention(q[0], k[0], v[0], batch)[None])[0]
        labels = torch.from_numpy(batch.shifted_labels())
        return F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") / batch.num_targets


def samples(masks: list[list[bool]]) -> dict:
    """Text is prompt, FAST tokens, padding: so the last token of a prompt predicts the first FAST token, as in openpi.

    With padding between the two (LeRobot) a padding slot would stand before it, and it cannot be a target.
    """
    count, slots = len(masks), 13
    prompt, end = torch.tensor([[3, 9], [6, 13], [1, 3]])[:count, :, None].unbind(1)
    at = torch.arange(slots)
    real = at < end
    return {
        "images": [torch.randn(count, 3, 16, 16).double() for _ in range(3)],
        "masks": list(torch.tensor(masks).unbind(1)),
        "tokens": torch.randint(VOCABULARY, (count, slots)),
        "real": real,
        "starts": (at >= prompt).long(),
        "targets": real & (at >= prompt),
    }


@pytest.mark.parametrize(
    "masks", [[[True, True, False], [True] * 3, [False, True, False]], [[True] * 3] * 3], ids=["ragged", "all there"]
)
def test_loss_and_gradients_equal_the_padded_model(masks) -> None:
    torch.manual_seed(0)
    model, given = Fast().double(), samples(masks)
    losses, gradients = [], []
    for way in (model.padded, model.packed):
        loss = way(**given)
        losses.append(loss.detach())
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    assert (losses[0] - losses[1]).abs() < 1e-9
    for first, second in zip(*gradients, strict=True):
        assert (first - second).abs().max() < 1e-9 * first.abs().max().clamp(min=1e-3)


def test_a_black_image_with_mask_true_counts_and_dropping_it_changes_the_loss() -> None:
    """What openpi hands to pi0-FAST for a camera that LIBERO does not have."""
    torch.manual_seed(0)
    model, given = Fast().double(), samples([[True] * 3] * 3)
    given["images"][2] = torch.zeros_like(given["images"][2])
    kept = model.packed(**given)
    assert (kept - model.padded(**given)).abs() < 1e-9
    dropped = given | {"images": given["images"][:2], "masks": given["masks"][:2]}
    assert (kept - model.packed(**dropped)).abs() > 1e-4


def test_rows_that_cannot_be_are_refused() -> None:
    with pytest.raises(PadlessError, match="sample 1 has no real token"):
        block_rows([[1, 1], [0, 0]], [0, 1])
    with pytest.raises(PadlessError, match="starts has shape"):
        block_rows([[1, 1]], [0, 1, 1])


# Conditions per token -------------------------------------------------------------------------------------------------


class PerToken(SmallPolicy):
    """Training-time RTC of LeRobot: the clean start of an action chunk has a time step of its own."""

    def embed_suffix(self, noisy_actions, time, state=None):
        x, real, starts, condition = super().embed_suffix(noisy_actions, time, state)
        steps = torch.linspace(0.5, 1.5, x.shape[1], dtype=x.dtype)
        assert condition is not None
        return x, real, starts, condition[:, None] * steps[:, None]


def test_a_condition_per_token_stays_with_its_token() -> None:
    config = SmallConfig()
    policy = PerToken(config, dtype=torch.float64)
    given = small_samples(config, views=[2, 3, 1], prompts=[5, 9, 3], dtype=torch.float64)
    expected = policy(**given)
    shared = SmallPolicy(config, dtype=torch.float64)(**given)
    assert (shared - expected).abs().max() > 1e-3
    padding_free(policy)
    assert (policy(**given) - expected).abs().max() < 1e-9
    assert np.isfinite(expected.detach().numpy()).all()
