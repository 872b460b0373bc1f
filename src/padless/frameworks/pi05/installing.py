"""Change how a pi0-type policy runs, without touching its code: real views, short prompts, real tokens only.

openpi's and LeRobot's torch classes (and `SmallPolicy`) share a call contract, and these are its seams:

- `model.embed_prefix(images, img_masks, tokens, masks, ...)` gives embeddings, which are real, and block starts;
- `model.embed_suffix(...)` gives the same of the suffix, and the condition of adaRMS;
- `model.paligemma_with_expert.forward(attention_mask, position_ids, .., inputs_embeds=[prefix, suffix], adarms_cond)`
  runs all layers.

Functions are put over these on the instance. Everything else (losses, noise, optimizers, saving) stays theirs.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from padless.errors import PadlessError
from padless.frameworks.pi05.experts import flat_norms, run_packed, teach_attention
from padless.frameworks.pi05.prompts import prompt_slice
from padless.frameworks.pi05.rows import PolicyRows
from padless.frameworks.pi05.views import embed_views, untraced
from padless.rows.tensors import host

_SEAMS = ("embed_prefix", "embed_suffix", "paligemma_with_expert")


@dataclass(kw_only=True, eq=False)
class Installed:
    """What was put over a model, and what its calls since then had to compute.

    Attributes:
        views: Views that went through the tower.
        view_slots: Views that the model as shipped would have sent through it.
        tokens: Prefix tokens that were computed; of trimmed models with the padding that is left.
        slots: Prefix slots that the model as shipped would have computed. Suffixes have no padding.
        rows: The rows of the last packed call.
    """

    views: int = 0
    view_slots: int = 0
    tokens: int = 0
    slots: int = 0
    rows: PolicyRows | None = None
    _undo: list[Callable[[], Any]] = field(default_factory=list, repr=False)

    def put(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """Put a function over a method of one instance, or over what is already put over it."""
        if name in owner.__dict__:
            self._undo.append(functools.partial(owner.__dict__.__setitem__, name, owner.__dict__[name]))
        else:
            self._undo.append(functools.partial(owner.__dict__.pop, name, None))
        owner.__dict__[name] = _Over(function, name)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute, to be set back by `remove`."""
        self._undo.append(functools.partial(setattr, owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def remove(self) -> None:
        """Give the model its own methods and settings back."""
        while self._undo:
            self._undo.pop()()

    def __str__(self) -> str:
        less = 1 - self.tokens / self.slots if self.slots else 0.0
        tokens = f"prefix tokens {self.tokens:,} of {self.slots:,} (-{less:.1%})"
        return f"views {self.views:,} of {self.view_slots:,}, {tokens}"


class _Over:
    """A function put over a method. It belongs to one model: a copy of the model would still run the first one's."""

    def __init__(self, function: Callable[..., Any], name: str):
        functools.update_wrapper(self, function)
        self._function, self._name = function, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __deepcopy__(self, _memo: Any) -> Any:
        raise PadlessError(
            f"this model's {self._name} was put over by padless, and a copy would run the layers of the original: "
            "copy the model first, then make both padding-free (or remove(), copy, install again)"
        )

    def __reduce__(self) -> Any:
        return self.__deepcopy__(None)


def trim(model: Any, *, buckets: Sequence[int] | None = None) -> Installed:
    """Send only real views through the tower, move each sample's views together, cut prompts to the batch.

    The layers still run a padded rectangle, but a small one. This needs no packed kernel and keeps shapes few, so it
    suits compiled models: with `buckets`, prompts take one of those lengths. Losses and actions are the same.

    Args:
        model: openpi's or LeRobot's `PI0Pytorch` / `PI05Pytorch`, or a `SmallPolicy`.
        buckets: Prompt lengths that may occur; see `prompt_buckets`. None: the longest of each batch.

    Returns:
        A handle with `.remove()` and counts.

    Raises:
        PadlessError: When the model does not have the contract's methods, or something is put over them already.

    Example:
        >>> from padless.frameworks.pi05.small import SmallConfig, SmallPolicy, small_samples
        >>> policy = SmallPolicy(SmallConfig())
        >>> samples = small_samples(policy.config, views=[2, 3, 2], prompts=[5, 9, 7])
        >>> before = policy(**samples)
        >>> handle = trim(policy)
        >>> torch.allclose(policy(**samples), before, atol=1e-5), str(handle)
        (True, 'views 7 of 9, prefix tokens 63 of 108 (-41.7%)')
    """
    missing = [name for name in _SEAMS if not hasattr(model, name)]
    if missing:
        raise PadlessError(
            f"{type(model).__name__} has no {', '.join(missing)}: expected the torch class of a pi0 or pi0.5 policy "
            "(LeRobot: policy.model; openpi: PI0Pytorch)"
        )
    if "embed_prefix" in model.__dict__:
        raise PadlessError(f"this {type(model).__name__} is trimmed or padding-free already; remove() that first")
    installed = Installed()
    _put_prefix(model, installed, buckets)
    return installed


def padding_free(model: Any) -> Installed:
    """Train on real tokens only: `trim`, and the layers run one packed row instead of a rectangle.

    Losses and gradients are those of the padded model. Inference (`sample_actions`) runs trimmed.

    Args:
        model: As `trim`.

    Returns:
        A handle with `.remove()` and counts.

    Raises:
        PadlessError: As `trim`; and when the model's attention cannot be told about packed rows.

    Example:
        >>> from padless.frameworks.pi05.small import SmallConfig, SmallPolicy, small_samples
        >>> policy = SmallPolicy(SmallConfig())
        >>> samples = small_samples(policy.config, views=[2, 3, 2], prompts=[5, 9, 7])
        >>> before = policy(**samples)
        >>> handle = padding_free(policy)
        >>> torch.allclose(policy(**samples), before, atol=1e-5), handle.rows
        (True, PolicyRows(3 samples, 49 + 15 tokens instead of 78))
    """
    installed = trim(model)
    try:
        teach_attention(model.paligemma_with_expert)
    except PadlessError:
        installed.remove()
        raise
    for norm, forward in flat_norms(model.paligemma_with_expert):
        installed.put(norm, "forward", forward)
    _put_layers(model, installed)
    return installed


def _put_prefix(model: Any, installed: Installed, buckets: Sequence[int] | None) -> None:
    inner, embed = model.embed_prefix, model.paligemma_with_expert.embed_image
    columns_of = untraced(prompt_slice)
    if hasattr(model, "_apply_checkpoint"):
        embed = functools.partial(model._apply_checkpoint, embed)

    @functools.wraps(inner)
    def embed_prefix(images: Any, img_masks: Any, tokens: Any, masks: Any, *rest: Any, **more: Any) -> Any:
        columns = columns_of(masks, buckets)
        views = embed_views(embed, images, img_masks)
        # Without images their own code embeds the prompt, and whatever else it knows; views come first in every layout.
        others, others_real, starts = inner([], [], tokens[:, columns], masks[:, columns], *rest, **more)
        samples, width = len(tokens), views.features.shape[1] + others.shape[1]
        installed.views += views.count
        installed.view_slots += samples * len(images)
        installed.tokens += samples * width
        cut = tokens.shape[1] - (columns.stop - columns.start)
        installed.slots += samples * (len(images) * views.tokens + others.shape[1] + cut)
        return (
            torch.cat([views.features.to(others.dtype), others], dim=1),
            torch.cat([views.real, others_real.bool()], dim=1),
            torch.cat([starts.new_zeros(views.real.shape), starts], dim=1),
        )

    installed.put(model, "embed_prefix", embed_prefix)


def _put_layers(model: Any, installed: Installed) -> None:
    experts = model.paligemma_with_expert
    forward = experts.forward
    last: dict[str, Any] = {}
    made: Any = WeakTensorKeyDictionary()  # positions of a call -> its rows: a checkpointed call runs again in backward

    def remember(name: str) -> None:
        inner = getattr(model, name)

        @functools.wraps(inner)
        def embed(*given: Any, **more: Any) -> Any:
            last[name] = inner(*given, **more)
            return last[name]

        installed.put(model, name, embed)

    @functools.wraps(forward)
    def packed(
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Any = None,
        use_cache: Any = None,
        adarms_cond: Any = None,
    ) -> Any:
        more = {"past_key_values": past_key_values, "use_cache": use_cache}
        if any(x is None for x in inputs_embeds):  # inference: prefix and suffix in turn, over a cache
            return forward(
                attention_mask=attention_mask,
                position_ids=position_ids,
                inputs_embeds=inputs_embeds,
                adarms_cond=adarms_cond,
                **more,
            )
        if position_ids not in made:
            made[position_ids] = installed.rows = _rows(last["embed_prefix"], last["embed_suffix"], position_ids)
            installed.tokens += installed.rows.num_prefix - last["embed_prefix"][1].numel()
        prefix, suffix = inputs_embeds
        conditions: list[torch.Tensor | None] = [None, None] if adarms_cond is None else list(adarms_cond)
        return run_packed(forward, made[position_ids], prefix=prefix, suffix=suffix, conditions=conditions, **more)

    remember("embed_prefix")
    remember("embed_suffix")
    installed.put(experts, "forward", untraced(packed))


def _rows(prefix: Any, suffix: Any, position_ids: torch.Tensor) -> PolicyRows:
    """Rows from what the two embedding methods returned, held against the positions that the model made of them."""
    (_, prefix_real, prefix_starts), (_, suffix_real, suffix_starts) = prefix, suffix[:3]
    real, starts = (
        np.concatenate([host(first).astype(np.int64), host(second.float()).astype(np.int64)], axis=1)
        for first, second in ((prefix_real, suffix_real), (prefix_starts.float(), suffix_starts))
    )
    expected = real.cumsum(axis=1) - 1
    if not np.array_equal(host(position_ids), expected):
        raise PadlessError(
            "this model's positions are not cumsum(real) - 1 over prefix and suffix, as in openpi: packed rows would "
            "give its tokens other positions; use trim(model)"
        )
    ranks, split = starts.cumsum(axis=1), prefix_real.shape[1]
    return PolicyRows.of(
        real[:, :split],
        prefix_ranks=ranks[:, :split],
        suffix_ranks=ranks[:, split:],
        suffix_mask=real[:, split:],
    )
