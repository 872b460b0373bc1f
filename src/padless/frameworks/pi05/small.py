"""A small policy with everything that makes pi0 and pi0.5 what they are, to test, measure and show on a CPU.

Two experts of different widths with one attention, multi-query heads, RoPE over `cumsum(mask) - 1`, a vision tower per
view, flow matching; adaRMS conditioning of the action expert (pi0.5), or a state token and a time MLP (pi0). It has the
call contract of openpi's and LeRobot's torch classes, so the same adapter serves all three.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - everybody's name for it

from padless.errors import PadlessError
from padless.frameworks.pi05.layout import PolicyLayout
from padless.frameworks.pi05.parts import AdaptiveNorm, ExpertLayer, Tower, attend, rotate, time_embedding
from padless.frameworks.pi05.rows import PolicyRows
from padless.measure.vla_cost import PolicyCost, Stack


@dataclass(frozen=True, kw_only=True)
class SmallConfig:
    """Sizes of a `SmallPolicy`; defaults are for tests. With `state=True` it is a pi0, otherwise a pi0.5."""

    cameras: tuple[str, ...] = ("base", "left_wrist", "right_wrist")
    prompt_slots: int = 24
    actions: int = 5
    state: bool = False
    action_size: int = 7
    vocabulary: int = 64
    image: int = 16
    patch: int = 8
    tower_width: int = 32
    tower_depth: int = 2
    width: int = 48
    hidden: int = 96
    expert_width: int = 32
    expert_hidden: int = 64
    depth: int = 2
    heads: int = 4
    head_size: int = 8

    def __post_init__(self) -> None:
        if self.image % self.patch:
            raise PadlessError(f"images of {self.image} pixels have no whole number of patches of {self.patch}")

    @property
    def layout(self) -> PolicyLayout:
        """Its slots."""
        return PolicyLayout(
            cameras=self.cameras,
            prompt_slots=self.prompt_slots,
            state_tokens=int(self.state),
            actions=self.actions,
            tokens_per_view=(self.image // self.patch) ** 2,
        )

    @property
    def cost(self) -> PolicyCost:
        """What a sample costs."""
        heads = {"layers": self.depth, "heads": self.heads, "kv_heads": 1, "head_size": self.head_size, "gated": True}
        return PolicyCost(
            tower=Stack(
                layers=self.tower_depth,
                width=self.tower_width,
                hidden=4 * self.tower_width,
                heads=4,
                kv_heads=4,
                head_size=self.tower_width // 4,
                gated=False,
            ),
            view_tokens=self.layout.tokens_per_view,
            patch=3 * self.patch**2,
            language=Stack(width=self.width, hidden=self.hidden, **heads),
            action=Stack(width=self.expert_width, hidden=self.expert_hidden, **heads),
        )


class SmallExperts(nn.Module):
    """The language model and the action expert; `forward` as openpi's `PaliGemmaWithExpertModel`."""

    takes_rows = True  # its attention knows `PolicyRows`

    def __init__(self, config: SmallConfig):
        super().__init__()
        condition = None if config.state else config.expert_width
        sizes = ((config.width, config.hidden, None), (config.expert_width, config.expert_hidden, condition))
        self.tower = Tower(
            image=config.image,
            patch=config.patch,
            width=config.tower_width,
            hidden=4 * config.tower_width,
            heads=4,
            depth=config.tower_depth,
            output=config.width,
        )
        self.embed_tokens = nn.Embedding(config.vocabulary, config.width)
        experts = (
            [ExpertLayer(width, hidden, config.heads, config.head_size, cond) for _ in range(config.depth)]
            for width, hidden, cond in sizes
        )
        self.layers, self.expert_layers = map(nn.ModuleList, experts)
        self.norms = nn.ModuleList(AdaptiveNorm(width, cond) for width, _, cond in sizes)

    def embed_image(self, images: torch.Tensor) -> torch.Tensor:
        """`[V, 3, size, size]` to `[V, tokens, width]`."""
        return self.tower(images)

    def forward(
        self,
        attention_mask: torch.Tensor | PolicyRows,
        position_ids: torch.Tensor,
        inputs_embeds: list[torch.Tensor],
        adarms_cond: list[torch.Tensor | None],
        past_key_values: Any = None,
        use_cache: bool = False,
    ) -> tuple[list[torch.Tensor], Any]:
        """Prefix and suffix `[B, Lp, width]`, `[B, Ls, expert width]` to the same; `attention_mask` as in `attend`."""
        xs, split = inputs_embeds, inputs_embeds[0].shape[1]
        pairs: Any = zip(self.layers, self.expert_layers, strict=True)
        for layer in pairs:
            halves = [half.before(x, cond) for half, x, cond in zip(layer, xs, adarms_cond, strict=True)]
            q, k, v = (torch.cat(parts, dim=1) for parts in zip(*(qkv for qkv, _ in halves), strict=True))
            out = attend(rotate(q, position_ids), rotate(k, position_ids), v, attention_mask)
            outs = (out[:, :split], out[:, split:])
            xs = [
                half.after(x, o, cond, gate)
                for half, x, o, cond, (_, gate) in zip(layer, xs, outs, adarms_cond, halves, strict=True)
            ]
        norms = zip(self.norms, xs, adarms_cond, strict=True)
        return [norm(x, cond=cond)[0] for norm, x, cond in norms], None


class SmallPolicy(nn.Module):
    """A small pi0.5 (or pi0), written padded, as the originals are; `padding_free(policy)` changes how it runs.

    Example:
        >>> policy = SmallPolicy(SmallConfig())
        >>> sum(p.numel() for p in policy.parameters()) < 200_000
        True
    """

    def __init__(self, config: SmallConfig, *, seed: int = 0, dtype: torch.dtype = torch.float32):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.config = config
            self.paligemma_with_expert = SmallExperts(config)
            width = config.expert_width
            self.action_in_proj = nn.Linear(config.action_size, width)
            self.action_out_proj = nn.Linear(width, config.action_size)
            self.state_proj = nn.Linear(config.action_size, width) if config.state else None
            self.time_mlp = nn.Sequential(
                nn.Linear(2 * width if config.state else width, width), nn.SiLU(), nn.Linear(width, width)
            )
            for parameter in self.parameters():
                if parameter.ndim == 1:
                    nn.init.normal_(parameter, std=0.1)  # so that no part can be left out unnoticed
        self.to(dtype)

    def embed_prefix(
        self, images: list[torch.Tensor], img_masks: list[torch.Tensor], tokens: torch.Tensor, masks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Views `[B, 3, s, s]`, prompt `[B, L]` and their masks: embeddings, which are real, block starts."""
        embedded, real = [], []
        for image, mask in zip(images, img_masks, strict=True):
            view = self.paligemma_with_expert.embed_image(image)
            embedded.append(view)
            real.append(mask[:, None].expand(view.shape[:2]))
        embedded.append(self.paligemma_with_expert.embed_tokens(tokens) * self.config.width**0.5)
        real.append(masks)
        joined = torch.cat(real, dim=1)
        return torch.cat(embedded, dim=1), joined, torch.zeros_like(joined)

    def embed_suffix(
        self, noisy_actions: torch.Tensor, time: torch.Tensor, state: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Actions `[B, H, A]` at `time [B]`: embeddings, which are real, block starts, the condition of adaRMS."""
        x = self.action_in_proj(noisy_actions)
        when = time_embedding(time, x.shape[-1])
        starts = torch.zeros(x.shape[1], dtype=torch.long, device=x.device)
        starts[0] = 1
        if self.state_proj is None:
            condition = F.silu(self.time_mlp(when))
        else:
            x = self.time_mlp(torch.cat([x, when[:, None].expand_as(x)], dim=-1))
            x, condition = torch.cat([self.state_proj(state)[:, None], x], dim=1), None
            starts = torch.cat([starts[:1], starts])
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        return x, real, starts.expand(real.shape), condition

    def forward(
        self,
        images: list[torch.Tensor],
        img_masks: list[torch.Tensor],
        tokens: torch.Tensor,
        masks: torch.Tensor,
        actions: torch.Tensor,
        noise: torch.Tensor,
        time: torch.Tensor,
        state: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The flow matching loss of every action number, `[B, H, A]`; reduce it as you like."""
        prefix, prefix_real, prefix_starts = self.embed_prefix(images, img_masks, tokens, masks)
        noisy = time[:, None, None] * noise + (1 - time[:, None, None]) * actions
        suffix, suffix_real, suffix_starts, condition = self.embed_suffix(noisy, time, state)
        real = torch.cat([prefix_real, suffix_real], dim=1)
        ranks = torch.cat([prefix_starts.long(), suffix_starts], dim=1).cumsum(dim=1)
        seen = (ranks[:, None, :] <= ranks[:, :, None]) & real[:, None, :]
        (_, out), _ = self.paligemma_with_expert(
            attention_mask=seen,
            position_ids=real.cumsum(dim=1) - 1,
            inputs_embeds=[prefix, suffix],
            adarms_cond=[None, condition],
        )
        return (noise - actions - self.action_out_proj(out[:, -self.config.actions :])).square()


def small_samples(
    config: SmallConfig, *, views: Sequence[int], prompts: Sequence[int], seed: int = 0, dtype: Any = torch.float32
) -> dict[str, Any]:
    """Random inputs of `SmallPolicy.forward`: one sample per entry, with its first so many views and prompt tokens.

    Masked views hold noise and padded prompts hold tokens, so that whoever reads them is found out.
    """
    make = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=make, dtype=torch.float64).to(dtype)

    samples = len(views)
    size = (samples, 3, config.image, config.image)
    has = torch.arange(len(config.cameras)) < torch.tensor(list(views))[:, None]
    lengths = torch.tensor(list(prompts))[:, None]
    inputs = {
        "images": [normal(*size) for _ in config.cameras],
        "img_masks": list(has.unbind(dim=1)),
        "tokens": torch.randint(config.vocabulary, (samples, config.prompt_slots), generator=make),
        "masks": torch.arange(config.prompt_slots) < lengths,
        "actions": normal(samples, config.actions, config.action_size),
        "noise": normal(samples, config.actions, config.action_size),
        "time": torch.rand(samples, generator=make, dtype=torch.float64).to(dtype),
    }
    if config.state:
        inputs["state"] = normal(samples, config.action_size)
    return inputs
