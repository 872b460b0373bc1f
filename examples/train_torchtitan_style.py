"""A loop in torchtitan's style, over a model of one's own: `python examples/train_torchtitan_style.py [STORE]`.

The three changed lines are marked: the model hands the batch to `varlen_attention`, the loader gives rows, the loss
divides by targets. With `train(..., checkpoint=FILE)` a killed run goes on where it was, loss by loss, bit for bit:
model, optimizer and loader state are one checkpoint.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from training_task import ROWS, STEPS, main, micro_batches, padded

from padless import Batch, PackedDataset, varlen_attention
from padless.training import PackedLoader, RowSampler, count_targets, packed_loss

WIDTH, HEADS, LAYERS, ACCUMULATION = 64, 4, 2, 2


class Block(nn.Module):
    """Attention and MLP, normalised before."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, batch: Batch | None) -> torch.Tensor:
        """Packed `[T, WIDTH]` with its batch, or padded `[rows, width, WIDTH]` without."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).unbind(-3)
        if batch is not None:
            mixed = varlen_attention(q, k, v, batch)  # 1. the attention: [T, H, D], inside segments
        else:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.out(mixed.flatten(-2))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """A small decoder."""

    def __init__(self, vocabulary: int, positions: int = 4096) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Embedding(positions, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, batch: Batch | None = None) -> torch.Tensor:
        """Logits of every position."""
        x = self.tokens(ids) + self.positions(positions)
        for block in self.blocks:
            x = block(x, batch)
        return self.head(self.norm(x))


def make_model(vocabulary: int) -> Transformer:
    torch.manual_seed(0)
    return Transformer(vocabulary)


def train(
    model: nn.Module, dataset: PackedDataset, *, packed: bool, steps: int = STEPS, checkpoint: Path | None = None
) -> list[float]:
    loader = PackedLoader(RowSampler(dataset, rows=ROWS, drop_last=True))  # 2. the loader
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses: list[float] = []
    if checkpoint is not None and checkpoint.exists():
        losses = load(checkpoint, model, optimizer, loader)
    for batches in micro_batches(loader, steps - len(losses), ACCUMULATION):
        targets = count_targets(batches)
        total = 0.0
        for batch in batches:
            if packed:
                logits = model(batch.input_ids, batch.position_ids, batch)
                loss = packed_loss(logits, batch, denominator=targets)  # 3. the loss
            else:
                loss = padded_loss(model, batch, dataset.plan.capacity, targets)
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
        if checkpoint is not None:
            save(checkpoint, model, optimizer, loader, losses)
    return losses


def padded_loss(model: nn.Module, batch: Batch, width: int, targets: float) -> torch.Tensor:
    inputs = padded(batch, width)
    logits = model(inputs["input_ids"], torch.arange(width))[:, :-1].flatten(0, 1)
    return functional.cross_entropy(logits, inputs["labels"][:, 1:].flatten(), reduction="sum") / targets


def save(path: Path, model: nn.Module, optimizer: Any, loader: PackedLoader, losses: list[float]) -> None:
    """Whole or not at all: written beside, then renamed."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loader": loader.state_dict(),  # how many batches arrived, not how many were read ahead
        "losses": losses,
    }
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def load(path: Path, model: nn.Module, optimizer: Any, loader: PackedLoader) -> list[float]:
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["loader"])
    return state["losses"]


if __name__ == "__main__":
    main(train, make_model)
