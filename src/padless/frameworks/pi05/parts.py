"""Parts of the small policy: norms, rotation, tower and layer of pi0-type models, in a few lines each."""

import math

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - everybody's name for it

from padless.frameworks.pi05.attention import policy_attention
from padless.frameworks.pi05.rows import PolicyRows


class AdaptiveNorm(nn.Module):
    """RMSNorm with Gemma's `1 + weight`; with `condition` set, scale, shift and gate come from a condition (adaRMS)."""

    def __init__(self, width: int, condition: int | None = None):
        super().__init__()
        self.cond_dim = condition
        self.weight = nn.Parameter(torch.zeros(width)) if condition is None else None
        self.dense = nn.Linear(condition, 3 * width) if condition is not None else None

    def forward(self, x: torch.Tensor, cond: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`x [B, n, width]` and `cond [B, C]` or, per token, `[B, n, C]`; returns the normed x and the gate."""
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        if self.weight is not None:
            return normed * (1 + self.weight), None
        assert self.dense is not None
        assert cond is not None
        modulation = self.dense(cond)
        scale, shift, gate = (modulation if modulation.ndim == x.ndim else modulation.unsqueeze(1)).chunk(3, dim=-1)
        return normed * (1 + scale) + shift, gate


def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """RoPE on `x [B, n, heads, size]` with positions `[B, n]`."""
    half = x.shape[-1] // 2
    frequencies = 10_000 ** -(torch.arange(half, dtype=x.dtype, device=x.device) / half)
    angles = (positions[..., None].to(x.dtype) * frequencies)[:, :, None]
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | PolicyRows) -> torch.Tensor:
    """`[B, n, heads, size]` to the same; `mask` is bool `[B, nq, nk]` (True = attend), or the rows of real tokens."""
    if isinstance(mask, PolicyRows):
        return policy_attention(q[0], k[0], v[0], mask)[None]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None], enable_gqa=True).transpose(1, 2)


class ExpertLayer(nn.Module):
    """One expert's half of a layer: what comes before and after the attention that both share."""

    def __init__(self, width: int, hidden: int, heads: int, head_size: int, condition: int | None):
        super().__init__()
        self.head_size = head_size
        self.input_layernorm = AdaptiveNorm(width, condition)
        self.q_proj = nn.Linear(width, heads * head_size, bias=False)
        self.k_proj = nn.Linear(width, head_size, bias=False)
        self.v_proj = nn.Linear(width, head_size, bias=False)
        self.o_proj = nn.Linear(heads * head_size, width, bias=False)
        self.post_attention_layernorm = AdaptiveNorm(width, condition)
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def before(self, x: torch.Tensor, cond: torch.Tensor | None) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        """Queries, keys and values `[B, n, heads, size]`, and the gate of the first residual."""
        normed, gate = self.input_layernorm(x, cond=cond)
        return [
            proj(normed).unflatten(-1, (-1, self.head_size)) for proj in (self.q_proj, self.k_proj, self.v_proj)
        ], gate

    def after(
        self, x: torch.Tensor, attended: torch.Tensor, cond: torch.Tensor | None, gate: torch.Tensor | None
    ) -> torch.Tensor:
        """The rest of the layer."""
        x = _gated(x, self.o_proj(attended.flatten(-2)), gate)
        normed, gate = self.post_attention_layernorm(x, cond=cond)
        hidden = F.gelu(self.gate_proj(normed), approximate="tanh") * self.up_proj(normed)
        return _gated(x, self.down_proj(hidden), gate)


class Tower(nn.Module):
    """A SigLIP-like vision tower: patches, learned positions, pre-norm layers that see a whole view, a projection."""

    def __init__(self, *, image: int, patch: int, width: int, hidden: int, heads: int, depth: int, output: int):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.positions = nn.Parameter(torch.randn((image // patch) ** 2, width) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, hidden, dropout=0.0, activation=F.gelu, batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.projection = nn.Linear(width, output)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """`[V, 3, size, size]` to `[V, tokens, output]`."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.projection(self.norm(x))


def time_embedding(time: torch.Tensor, width: int) -> torch.Tensor:
    """Sines and cosines of `time [B]` at periods from 0.004 to 4, `[B, width]`."""
    fraction = torch.linspace(0, 1, width // 2, dtype=time.dtype, device=time.device)
    angles = time[:, None] * (2 * math.pi / (4e-3 * 1000**fraction))
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def _gated(x: torch.Tensor, y: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
    return x + y if gate is None else x + y * gate
