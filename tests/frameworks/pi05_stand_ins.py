"""Models and policies with the call contracts of LeRobot's and openpi's torch classes, in small.

Neither library is installed for the tests. What these keep is what an adapter relies on: who calls whom with what, that
attention is looked up as `modeling_gemma.eager_attention_forward` at every call and takes an additive 4-D mask, that
openpi's conditioned norm knows one condition per sample only, that LeRobot appends absent cameras filled with -1, that
openpi insists on three camera keys.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from padless.frameworks.pi05.parts import AdaptiveNorm, rotate
from padless.frameworks.pi05.small import SmallConfig, SmallExperts, SmallPolicy

OPENPI_KEYS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")


def eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0):
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    weights = (query @ key.transpose(2, 3) * scaling + attention_mask).softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


modeling_gemma = SimpleNamespace(eager_attention_forward=eager_attention_forward)


class NormOfOpenpi(AdaptiveNorm):
    """One condition per sample: three axes of x always get an axis put into the modulation."""

    def forward(self, x: torch.Tensor, cond: torch.Tensor | None = None) -> Any:
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        if self.dense is None:
            return normed * (1 + self.weight), None
        modulation = self.dense(cond)
        if x.ndim == 3:
            modulation = modulation.unsqueeze(1)
        scale, shift, gate = modulation.chunk(3, dim=-1)
        return normed * (1 + scale) + shift, gate


class Experts(SmallExperts):
    takes_rows = False

    def __init__(self, config: SmallConfig, norm: type[nn.Module]):
        super().__init__(config)
        for module in self.modules():
            if type(module) is AdaptiveNorm:
                module.__class__ = norm

    def forward(
        self,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        inputs_embeds=None,
        use_cache=None,
        adarms_cond=None,
    ):
        def layer(xs, attention_mask, position_ids, adarms_cond, layers):
            halves = [half.before(x, cond) for half, x, cond in zip(layers, xs, adarms_cond, strict=True)]
            q, k, v = (torch.cat(parts, dim=1) for parts in zip(*(qkv for qkv, _ in halves), strict=True))
            q, k = rotate(q, position_ids), rotate(k, position_ids)
            out, _ = modeling_gemma.eager_attention_forward(
                self, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attention_mask, q.shape[-1] ** -0.5
            )
            outs = out[:, : xs[0].shape[1]], out[:, xs[0].shape[1] :]
            return [
                half.after(x, o, cond, gate)
                for half, x, o, cond, (_, gate) in zip(layers, xs, outs, adarms_cond, halves, strict=True)
            ]

        xs = inputs_embeds
        for layers in zip(self.layers, self.expert_layers, strict=True):
            given = (xs, attention_mask, position_ids, adarms_cond, layers)
            xs = (
                torch.utils.checkpoint.checkpoint(layer, *given, use_reentrant=False)
                if self.training
                else layer(*given)
            )
        return [norm(x, cond=cond)[0] for norm, x, cond in zip(self.norms, xs, adarms_cond, strict=True)], None


class ModelOfLeRobot(SmallPolicy):
    def __init__(self, config: SmallConfig, norm: type[nn.Module] = AdaptiveNorm):
        super().__init__(config)
        self.paligemma_with_expert = Experts(config, norm)
        self.double()

    def _apply_checkpoint(self, function, *args):
        if self.training:
            return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
        return function(*args)

    def forward(self, images, img_masks, tokens, masks, actions, noise, time, state=None):
        prefix, prefix_real, prefix_starts = self.embed_prefix(images, img_masks, tokens, masks)
        noisy = time[:, None, None] * noise + (1 - time[:, None, None]) * actions
        suffix, suffix_real, suffix_starts, condition = self.embed_suffix(noisy, time, state)
        real = torch.cat([prefix_real, suffix_real], dim=1)
        ranks = torch.cat([prefix_starts.bool(), suffix_starts], dim=1).cumsum(dim=1)
        seen = (ranks[:, None] <= ranks[:, :, None]) & real[:, None] & real[:, :, None]
        mask = torch.where(seen[:, None], 0.0, -2.3819763e38).to(prefix.dtype)

        def layers(prefix, suffix, mask, positions, condition):
            (_, out), _ = self.paligemma_with_expert.forward(
                attention_mask=mask,
                position_ids=positions,
                past_key_values=None,
                inputs_embeds=[prefix, suffix],
                use_cache=False,
                adarms_cond=[None, condition],
            )
            return out

        out = self._apply_checkpoint(layers, prefix, suffix, mask, torch.cumsum(real, dim=1) - 1, condition)
        return (noise - actions - self.action_out_proj(out[:, -self.config.actions :])).square()


class PolicyOfLeRobot(nn.Module):
    """`PI05Policy`: features in a config, `_preprocess_images`, `forward(batch)`."""

    def __init__(self, cameras: tuple[str, ...], *, compile_model: bool = False):
        super().__init__()
        self.model = ModelOfLeRobot(SmallConfig(cameras=cameras))
        features: dict[str, Any] = {f"observation.images.{name}": "VISUAL" for name in cameras}
        features["observation.state"] = "STATE"
        self.config = ConfigOfLeRobot(features, compile_model)

    def _preprocess_images(self, batch):
        present = [key for key in self.config.image_features if key in batch]
        images = [batch[key] * 2.0 - 1.0 for key in present]
        masks = [torch.ones(len(image), dtype=torch.bool) for image in images]
        for _ in range(len(self.config.image_features) - len(present)):
            images.append(torch.ones_like(images[-1]) * -1)
            masks.append(torch.zeros_like(masks[-1]))
        return images, masks

    def forward(self, batch):
        images, masks = self._preprocess_images(batch)
        tokens, real = batch["observation.language.tokens"], batch["observation.language.attention_mask"]
        return self.model.forward(images, masks, tokens, real, batch["action"], batch["noise"], batch["time"]).mean()


class ConfigOfLeRobot:
    def __init__(self, input_features: dict[str, Any], compile_model: bool):
        self.input_features = input_features
        self.compile_model = compile_model
        self.empty_cameras = sum(".empty_camera_" in name for name in input_features)

    @property
    def image_features(self) -> dict[str, Any]:
        return {name: kind for name, kind in self.input_features.items() if kind == "VISUAL"}


class TokenizerStep:
    """`TokenizerProcessorStep`: pads as its field says, at every call."""

    def __init__(self):
        self.max_length, self.padding, self.truncation = 24, "max_length", True

    def __call__(self, prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        cut = [prompt[: self.max_length] for prompt in prompts]
        width = self.max_length if self.padding == "max_length" else max(map(len, cut))
        tokens = torch.tensor([prompt + [0] * (width - len(prompt)) for prompt in cut])
        return tokens, torch.arange(width) < torch.tensor([len(prompt) for prompt in cut])[:, None]


class _Preprocessing:
    @staticmethod
    def preprocess_observation_pytorch(observation, *, train=False, image_keys=OPENPI_KEYS):
        if not set(image_keys).issubset(observation.images):
            raise ValueError(f"images dict missing keys: expected {image_keys}, got {list(observation.images)}")
        masks = {k: observation.image_masks.get(k, torch.ones(len(observation.state)).bool()) for k in image_keys}
        return SimpleNamespace(
            images={key: observation.images[key] for key in image_keys},
            image_masks=masks,
            tokenized_prompt=observation.tokenized_prompt,
            tokenized_prompt_mask=observation.tokenized_prompt_mask,
            state=observation.state,
        )


_preprocessing = _Preprocessing


class PI0Pytorch(ModelOfLeRobot):
    """openpi's class: takes an observation, and its conditioned norm takes one condition per sample."""

    def __init__(self, config: SmallConfig):
        super().__init__(config, norm=NormOfOpenpi)

    def _preprocess_observation(self, observation, *, train=True):
        done = _preprocessing.preprocess_observation_pytorch(observation, train=train)
        return (
            list(done.images.values()),
            list(done.image_masks.values()),
            done.tokenized_prompt,
            done.tokenized_prompt_mask,
            done.state,
        )

    def forward(self, observation, actions, noise=None, time=None):
        images, masks, tokens, real, state = self._preprocess_observation(observation, train=True)
        state = state if self.config.state else None
        return super().forward(images, masks, tokens, real, actions, noise, time, state)
