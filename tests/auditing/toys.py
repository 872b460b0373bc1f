"""Toy models and collators with one switch per fault.

Every part is right when `fault` is "", and wrong in exactly one way otherwise. Rows are `[1, T]`; `segment_ids` are
1..S and 0 on padding.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, EOD, WIDTH, HEADS, WINDOW, MEMORY = 96, 1, 16, 2, 5, 3


@dataclass(frozen=True)
class Row:
    """What mixers know about the row."""

    segments: torch.Tensor  # [T]
    positions: torch.Tensor  # [A, T]

    @property
    def count(self) -> int:
        return int(self.segments.max())

    @property
    def same(self) -> torch.Tensor:
        """[T, T] bool: both real and of one segment."""
        real = self.segments > 0
        return (self.segments[:, None] == self.segments[None]) & real[:, None] & real[None]


class Attention(nn.Module):
    def __init__(self, fault: str, *, window: int | None, memory: bool, axes: int, rotary: bool):
        super().__init__()
        self.fault, self.window, self.axes, self.rotary = fault, window, axes, rotary
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.memory = nn.Parameter(torch.randn(2, MEMORY, WIDTH)) if memory else None

    def forward(self, x: torch.Tensor, row: Row) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if self.rotary:
            q, k = self.rotate(q, row), self.rotate(k, row)
        mask = self.mask(row)
        if self.memory is not None:
            k = torch.cat([self.memory[0].to(k), k])
            v = torch.cat([self.memory[1].to(v), v])
            mask = self.with_memory(mask, row)
        q, k, v = (t.view(t.shape[0], HEADS, -1).transpose(0, 1) for t in (q, k, v))
        scores = (q @ k.transpose(1, 2)) * q.shape[-1] ** -0.5
        mixed = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        return self.out(self.leaks(mixed, v, row).transpose(0, 1).reshape(x.shape))

    def mask(self, row: Row) -> torch.Tensor:
        segments = row.segments
        if self.fault == "off-by-one":  # each boundary one token late
            real = segments > 0
            segments = torch.where(real, torch.cat([segments[:1], segments[:-1]]), segments)
        same = segments[:, None] == segments[None]
        if self.fault == "no-mask" or (self.fault == "three-segments" and row.count >= 3):
            same = torch.ones_like(same)
        index = torch.arange(len(segments), device=segments.device)
        distance = index[:, None] - index[None]
        allowed = same & (distance >= 0)
        if self.window is not None:
            wide = self.window + (2 if self.fault == "wrong-window" and row.count > 1 else 0)
            allowed &= distance < wide
        if self.fault == "attends-padding":
            allowed |= (row.segments == 0)[None] & (row.segments > 0)[:, None]
        return allowed | torch.eye(len(segments), dtype=torch.bool, device=segments.device)

    def with_memory(self, mask: torch.Tensor, row: Row) -> torch.Tensor:
        """Every segment has MEMORY keys in front of its own; query i sees keys up to i + MEMORY (bottom right)."""
        if self.fault == "upper-left" and row.count > 1:
            # Counted from the upper left, query i sees MEMORY keys fewer: its own nearest ones are cut off.
            place = torch.arange(len(mask))
            start = torch.stack([(row.segments == s).nonzero()[0, 0] for s in row.segments])
            inside = place - start
            seen = inside[None] + MEMORY <= inside[:, None]
            memory = torch.arange(MEMORY)[None] <= inside[:, None]
            return torch.cat([memory, mask & seen], dim=1)
        return torch.cat([torch.ones(len(mask), MEMORY, dtype=torch.bool), mask], dim=1)

    def rotate(self, x: torch.Tensor, row: Row) -> torch.Tensor:
        half = WIDTH // HEADS // 2
        rate = 100.0 ** -(torch.arange(half, dtype=x.dtype) / half)
        axis = torch.arange(half) % self.axes
        positions = row.positions.expand(self.axes, -1) if row.positions.shape[0] == 1 else row.positions[-self.axes :]
        angle = positions[axis].T.to(x.dtype) * rate
        a, b = x.view(len(x), HEADS, 2, half).unbind(2)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=2).reshape(x.shape)

    def leaks(self, mixed: torch.Tensor, v: torch.Tensor, row: Row) -> torch.Tensor:
        if self.fault == "small-leak":
            foreign = (~row.same & (row.segments > 0)[None]).to(v)
            return mixed + 1e-3 * (foreign / foreign.sum(1, keepdim=True).clamp(min=1)) @ v[:, -len(foreign) :]
        if self.fault == "last-to-first" and row.count > 1:
            leaked = v[:, row.segments == row.count].mean(1, keepdim=True)
            return mixed + leaked * (row.segments == 1).to(v)[None, :, None]
        return mixed


class SelectiveState(nn.Module):
    """h <- a * h + b(x); a = 0 at boundaries."""

    def __init__(self, fault: str):
        super().__init__()
        self.fault = fault
        self.gate, self.input = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, row: Row) -> torch.Tensor:
        keep, new = torch.sigmoid(self.gate(x)), self.input(x)
        state, states = torch.zeros_like(x[0]), []
        for t in range(len(x)):
            fresh = t == 0 or (row.segments[t] != row.segments[t - 1] and self.fault != "state")
            state = new[t] if fresh else keep[t] * state + new[t]
            states.append(state)
        return torch.stack(states)


class ShortConvolution(nn.Module):
    def __init__(self, fault: str):
        super().__init__()
        self.fault = fault
        self.weight = nn.Parameter(torch.randn(3, WIDTH) * 0.5)

    def forward(self, x: torch.Tensor, row: Row) -> torch.Tensor:
        total = x * self.weight[0]
        for lag in (1, 2):
            moved = functional.pad(x, (0, 0, lag, 0))[: len(x)]
            same = functional.pad(row.segments, (lag, 0))[: len(x)] == row.segments
            total = total + self.weight[lag] * (moved if self.fault == "convolution" else moved * same[:, None].to(x))
        return total


class Experts(nn.Module):
    """Top-1 experts; the auxiliary loss counts real tokens only."""

    def __init__(self, fault: str):
        super().__init__()
        self.fault = fault
        self.router = nn.Linear(WIDTH, 3, bias=False)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.aux = torch.zeros(())

    def forward(self, x: torch.Tensor, row: Row) -> torch.Tensor:
        share = self.router(x).softmax(-1)
        top = share.argmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            mine = top == i
            out[mine] = expert(x[mine]) * share[mine, i, None]
        counted = share if self.fault == "aux-padding" else share[row.segments > 0]
        self.aux = (counted.mean(0) ** 2).sum()
        return out


class BatchNorm(nn.Module):
    def __init__(self, fault: str):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH) if fault == "batch-norm" else nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, row: Row) -> torch.Tensor:
        return self.norm(x)


class Remembering(nn.Module):
    def __init__(self, fault: str):
        super().__init__()
        self.fault, self.last = fault, None

    def forward(self, x: torch.Tensor, row: Row) -> torch.Tensor:
        before, self.last = self.last, x.detach().abs().mean()
        return x + (before.to(x) if self.fault == "remembers" and before is not None else 0)


@dataclass(frozen=True, kw_only=True)
class Design:
    """What a toy is made of.

    Attributes:
        fault: Name of the fault, "" for none.
        mixers: One per layer.
        positions: "learned", "rotary", "axes" (M-RoPE), or "none".
        window: Attention window, or None.
        memory: Attention has extra keys in front of each segment.
        only_layer: The layer that has the fault; all when None.
        boundaries: "always", or what switches them: "no-mask-given", "no-cache", "seq-idx".
    """

    fault: str = ""
    mixers: tuple[str, ...] = ("attention", "attention")
    positions: str = "rotary"
    window: int | None = None
    memory: bool = False
    only_layer: int | None = None
    boundaries: str = "always"
    use_cache: bool = False


class Toy(nn.Module):
    def __init__(self, design: Design, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.design = design
        axes = 3 if design.positions == "axes" else 1
        scaling = {"mrope_section": [1, 1, 2]} if axes == 3 else None
        self.config = SimpleNamespace(
            vocab_size=VOCABULARY, eos_token_id=EOD, use_cache=design.use_cache, rope_scaling=scaling
        )
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(128, WIDTH) if design.positions == "learned" else None
        self.layers = nn.ModuleList(self.mixer(i, kind, axes) for i, kind in enumerate(design.mixers))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in design.mixers)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def mixer(self, index: int, kind: str, axes: int) -> nn.Module:
        design = self.design
        fault = design.fault if design.only_layer in (None, index) else ""
        if kind == "attention":
            rotary = design.positions in ("rotary", "axes")
            return Attention(fault, window=design.window, memory=design.memory, axes=axes, rotary=rotary)
        kinds = {
            "state": SelectiveState, "convolution": ShortConvolution, "experts": Experts, "norm": BatchNorm,
            "remembering": Remembering,
        }  # fmt: skip
        return kinds[kind](fault)

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        segment_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        use_cache: bool | None = None,
        seq_idx: torch.Tensor | None = None,
        num_items: int | None = None,
    ) -> Any:
        row = self.row(input_ids, position_ids, segment_ids, attention_mask, use_cache, seq_idx)
        x = self.embed(input_ids[0])
        if self.places is not None:
            x = x + self.places(row.positions[0])
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x), row)
        logits = self.head(x)[None]
        aux = sum((layer.aux for layer in self.layers if isinstance(layer, Experts)), start=torch.zeros(()))
        loss = None if labels is None else self.loss(logits, labels, num_items) + 0.01 * self.counted(aux)
        has_aux = any(isinstance(layer, Experts) for layer in self.layers) and self.design.fault == "aux-padding"
        return SimpleNamespace(logits=logits, loss=loss, aux_loss=aux if has_aux else None)

    def counted(self, aux: torch.Tensor) -> torch.Tensor:
        # Only the faulty model adds the term: a batch statistic is no sum over samples, and that is another matter.
        return aux if self.design.fault == "aux-padding" else torch.zeros(())

    def row(self, input_ids, position_ids, segment_ids, attention_mask, use_cache, seq_idx) -> Row:
        length = input_ids.shape[1]
        segments = torch.ones(length, dtype=torch.long) if segment_ids is None else segment_ids[0].long()
        cached = self.config.use_cache if use_cache is None else use_cache
        switch = self.design.boundaries
        if switch == "seq-idx":
            segments = torch.ones(length, dtype=torch.long) if seq_idx is None else seq_idx[0].long()
        if (switch == "no-mask-given" and attention_mask is not None) or (switch == "no-cache" and cached):
            segments = torch.ones(length, dtype=torch.long)
        positions = torch.arange(length)[None] if position_ids is None else position_ids.reshape(-1, length)
        return Row(segments=segments, positions=positions)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, num_items: int | None) -> torch.Tensor:
        shifted = functional.pad(labels[0], (0, 1), value=-100)[1:]
        total = functional.cross_entropy(
            logits[0].float() if logits.dtype == torch.bfloat16 else logits[0], shifted, reduction="sum"
        )
        return total / (num_items if num_items is not None else (shifted != -100).sum())


@dataclass(frozen=True, kw_only=True)
class Collator:
    """A right collator, or one with a fault."""

    fault: str = ""
    emit: tuple[str, ...] = ("position_ids", "segment_ids", "labels")
    axes: int = 1
    extras: dict[str, Any] = field(default_factory=dict)

    def __call__(self, samples: list[dict[str, Any]], capacity: int | None = None) -> dict[str, Any]:
        if self.fault == "drops-last-token":
            samples = [{k: v[:-1] for k, v in s.items()} if len(s["input_ids"]) > 1 else s for s in samples]
        ids = [t for s in samples for t in s["input_ids"]]
        labels = [t for s in samples for t in self.labels(s)]
        segments = [i + 1 for i, s in enumerate(samples) for _ in s["input_ids"]]
        positions = [p for s in samples for p in range(len(s["input_ids"]))]
        if self.fault in ("positions-run-on", "positions-run-on-harmless"):
            positions = list(range(len(ids)))
        if self.fault == "double-shift":
            labels = [*labels[1:], -100]
        padding = (capacity or len(ids)) - len(ids)
        ids += [EOD] * padding  # the pad id is the end-of-document id, as it often is
        labels += [EOD if self.fault == "padding-in-loss" else -100] * padding
        segments += [0] * padding
        positions += [0] * padding
        if self.fault == "masks-by-pad-id":
            labels = [-100 if t == EOD else t for t in labels]
        rows = {"segment_ids": segments, "labels": labels, "seq_idx": segments, "attention_mask": [1] * len(ids)}
        out: dict[str, Any] = {"input_ids": torch.tensor([ids])}
        out |= {name: torch.tensor([rows[name]]) for name in self.emit if name in rows}
        if "position_ids" in self.emit:
            axes = 1 if self.fault == "one-axis" else self.axes
            out["position_ids"] = torch.tensor([[positions]] * axes) if axes > 1 else torch.tensor([positions])
        return out

    def labels(self, sample: dict[str, Any]) -> list[int]:
        if self.fault == "prompt-trained":
            return [-100, *sample["input_ids"][1:]]
        if self.fault == "cross-boundary-label":
            return sample["labels"]
        return [-100, *sample["labels"][1:]]


class Bare(nn.Module):
    """A model whose forward is given as a function of (self, input_ids, **rest)."""

    def __init__(self, forward):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.run = forward

    def forward(self, input_ids, segment_ids=None, position_ids=None, labels=None):
        return self.run(self, input_ids)
