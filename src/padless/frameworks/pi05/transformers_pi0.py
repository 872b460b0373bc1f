"""Transformers' own PI0 on real tokens only, without touching its code.

Its language side already drops the tokens of absent cameras, but the tower still encodes their empty slots, prompts are
padded, and every layer takes a dense mask. It runs the two experts one after the other: the prefix fills a cache, the
suffix reads it. So a packed row is two calls here too, and the cache is the key side `[P0 P1 .. | S0 S1 ..]`.
"""

import contextvars
import functools
from typing import Any

import numpy as np
import torch

from padless.errors import PadlessError, require
from padless.frameworks.pi05.attention import policy_attention
from padless.frameworks.pi05.installing import Installed
from padless.frameworks.pi05.rows import PolicyRows
from padless.rows.tensors import host

NAME = "padless_policy"

_rows: contextvars.ContextVar[PolicyRows | None] = contextvars.ContextVar("padless_policy_rows", default=None)


def padding_free_transformers(model: Any) -> Installed:
    """Train a `PI0ForConditionalGeneration` on real views and real prompt tokens only.

    Losses and gradients are those of the padded model. Calls with a cache (`sample_actions`) stay what they were.

    Args:
        model: A `transformers.PI0ForConditionalGeneration`.

    Returns:
        A handle with `.remove()` and counts.

    Raises:
        PadlessError: When the model is of another kind, or is padding-free already.
    """
    require("transformers", extra="hf", feature="padding_free_transformers")
    from transformers import AttentionInterface, AttentionMaskInterface

    inner: Any = getattr(model, "model", None)
    if not all(hasattr(inner, name) for name in ("vlm", "dit", "embed_prefix")):
        raise PadlessError(
            f"{type(model).__name__} is no PI0ForConditionalGeneration: it has no model.vlm and model.dit"
        )
    if "forward" in inner.__dict__:
        raise PadlessError("this model is padding-free already; remove() that first")
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)
    installed = Installed()
    # Only the two language models: the tower sees whole views and keeps its own attention.
    installed.set(inner.vlm.config, "_attn_implementation", NAME)
    installed.set(inner.vlm.config.text_config, "_attn_implementation", NAME)
    installed.set(inner.dit.config, "_attn_implementation", NAME)
    installed.put(inner, "forward", torch.compiler.disable(_packed(inner, installed)))
    return installed


def _packed(inner: Any, installed: Installed) -> Any:
    forward = inner.forward

    @functools.wraps(forward)
    def packed(
        action_embeds: torch.Tensor,
        input_ids: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        pixel_attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> Any:
        if cache is not None or pixel_values is None or inputs_embeds is not None or input_ids is None:
            return forward(
                action_embeds=action_embeds,
                input_ids=input_ids,
                pixel_values=pixel_values,
                attention_mask=attention_mask,
                pixel_attention_mask=pixel_attention_mask,
                position_ids=position_ids,
                inputs_embeds=inputs_embeds,
                cache=cache,
                **kwargs,
            )
        if position_ids is not None:
            raise PadlessError("position_ids were given: packed rows number real tokens themselves; leave them out")
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        suffix = action_embeds.shape[1]
        rows = PolicyRows.of(real, suffix_ranks=np.minimum(np.arange(suffix), 1) + 1)
        views = pixel_values.shape[:2] if pixel_attention_mask is None else pixel_attention_mask.shape
        there = np.ones(views, bool) if pixel_attention_mask is None else host(pixel_attention_mask).astype(bool)
        installed.rows = rows
        installed.views += int(there.sum())
        installed.view_slots += there.size
        installed.tokens += rows.num_prefix
        installed.slots += input_ids.numel()
        token = _rows.set(rows)
        try:
            return _run(inner, rows, input_ids, pixel_values, there, action_embeds, kwargs)
        finally:
            _rows.reset(token)

    return packed


def _run(
    inner: Any,
    rows: PolicyRows,
    input_ids: torch.Tensor,
    pixel_values: torch.Tensor,
    there: np.ndarray,
    action_embeds: torch.Tensor,
    kwargs: dict[str, Any],
) -> Any:
    device = action_embeds.device
    prefix, positions = (torch.from_numpy(x).to(device) for x in (rows.prefix_index, rows.positions[None]))
    ids = input_ids.flatten()[prefix][None]
    images = pixel_values.flatten(0, 1).index_select(0, torch.from_numpy(np.flatnonzero(there)).to(device))
    features = inner.vlm.get_image_features(images).pooler_output.flatten(0, 1)
    special = ids == inner.config.vlm_config.image_token_id
    if int(special.sum()) != len(features):
        raise PadlessError(
            f"{int(special.sum())} image tokens in input_ids and {len(features)} from {len(images)} real views: the "
            "pixel_attention_mask and the prompts speak of different cameras"
        )
    embeds = inner.vlm.get_input_embeddings()(ids.masked_fill(special, 0))
    embeds = embeds.masked_scatter(special[..., None], features.to(embeds.dtype))
    split = rows.num_prefix
    cache = inner.vlm(inputs_embeds=embeds, position_ids=positions[:, :split], use_cache=True, policy_rows=rows).cache
    out = inner.dit(
        inputs_embeds=action_embeds.flatten(0, 1)[None],
        position_ids=positions[:, split:],
        cache=cache,
        policy_rows=rows,
        **kwargs,
    )
    out.last_hidden_state = out.last_hidden_state[0].unflatten(0, action_embeds.shape[:2])
    return out


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    policy_rows: PolicyRows | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention in the signature of Transformers' `AttentionInterface`; without rows, Transformers' own."""
    if policy_rows is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)  # type: ignore[return-value]
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return policy_attention(q, k, v, policy_rows, scale=scaling)[None], None


def _mask(*args: Any, **kwargs: Any) -> Any:
    """No mask for packed rows; what `sdpa` takes for anything else."""
    from transformers import masking_utils

    return None if _rows.get() is not None else masking_utils.sdpa_mask(*args, **kwargs)
