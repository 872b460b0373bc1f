"""Prepacked prefill: prompts of different lengths through the model in packed rows, with a cache for each.

The idea is from Zhao, Israel, Van den Broeck, Grover: "Prepacking: A Simple Method for Fast Prefilling and Increased
Throughput in Large Language Models" (2024). Padded prefill computes the padding of all prompts but the longest.
"""

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from padless.errors import PadlessError
from padless.frameworks.transformers.gate import GATED
from padless.planning import plan


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Prefilled:
    """One prompt after prefill.

    Attributes:
        input_ids: The prompt, int64 `[1, n]`.
        logits: Of its last token, `[vocabulary]`.
        cache: Holds its n tokens, as if the prompt had been run alone.
        cache_argument: What this version of Transformers calls the cache in a forward call.
    """

    input_ids: torch.Tensor
    logits: torch.Tensor
    cache: DynamicCache
    cache_argument: str

    def generation_inputs(self, next_token: int | torch.Tensor | None = None) -> dict[str, Any]:
        """Keyword arguments with which `model.generate` goes on after the prompt.

        The chosen token becomes part of the prompt. If it is the model's EOS, the answer is over: do not go on.

        Args:
            next_token: The token chosen after the prompt; the likeliest when None.
        """
        chosen = self.logits.argmax() if next_token is None else torch.as_tensor(next_token)
        following = torch.cat([self.input_ids, chosen.reshape(1, 1).to(self.input_ids)], dim=1)
        return {
            "input_ids": following,
            "attention_mask": torch.ones_like(following),
            self.cache_argument: self.cache,
            "use_cache": True,
        }


def prefill(model: Any, prompts: Sequence[Sequence[int]], *, capacity: int | None = None) -> list[Prefilled]:
    """Run prompts of any lengths in packed rows and hand back, for each, its last logits and its own cache.

    Args:
        model: A causal language model that `prepare` has prepared, whose layers keep nothing but keys and values.
        prompts: Token ids, at least one per prompt.
        capacity: Tokens per forward pass; prompts are planned into rows of so many. None: all prompts in one pass.

    Returns:
        One `Prefilled` per prompt, in the order given. No gradients.

    Raises:
        PadlessError: When the model is not prepared, keeps more than keys and values, or a prompt is empty or too long.

    Example:
        >>> from padless.frameworks.tiny_models import tiny_model
        >>> from padless.frameworks.transformers import prepare
        >>> model = tiny_model("llama")
        >>> _ = prepare(model)
        >>> first, second = prefill(model, [[5, 6, 7, 8], [9, 10]])
        >>> first.cache.get_seq_length(), second.cache.get_seq_length()
        (4, 2)
        >>> model.generate(**second.generation_inputs(), max_new_tokens=3, do_sample=False).shape
        torch.Size([1, 6])
    """
    _check(model, prompts)
    lengths = np.array([len(prompt) for prompt in prompts])
    rows = _rows(lengths, capacity)
    done: dict[int, Prefilled] = {}
    with torch.no_grad():
        for row in rows:
            done.update(zip(row, _prefill_row(model, [prompts[i] for i in row]), strict=True))
    return [done[i] for i in range(len(prompts))]


def _check(model: Any, prompts: Sequence[Sequence[int]]) -> None:
    if not getattr(model, GATED, False):
        raise PadlessError(
            f"{type(model).__name__} is not prepared: its prompts would see each other; call "
            "padless.frameworks.transformers.prepare(model) first"
        )
    empty = [i for i, prompt in enumerate(prompts) if len(prompt) == 0]
    if empty:
        raise PadlessError(f"prompt {empty[0]} is empty: there is no last token whose logits could be given back")


def _rows(lengths: np.ndarray, capacity: int | None) -> list[list[int]]:
    if not len(lengths):
        return []
    if capacity is None:
        return [list(range(len(lengths)))]
    planned = plan(lengths, capacity)
    return [planned.row(r)[0].tolist() for r in range(planned.num_rows)]


def _prefill_row(model: Any, prompts: list[Sequence[int]]) -> list[Prefilled]:
    tokens = [torch.as_tensor(prompt, dtype=torch.long, device=model.device) for prompt in prompts]
    lengths = [len(prompt) for prompt in prompts]
    offsets = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    parameters = inspect.signature(model.forward).parameters
    if "logits_to_keep" not in parameters:
        raise PadlessError(
            f"{type(model).__name__} is no causal language model of Transformers: it takes no logits_to_keep"
        )
    cache, argument = DynamicCache(), "cache" if "cache" in parameters else "past_key_values"
    output = model(
        input_ids=torch.cat(tokens)[None],
        cu_seq_lens_q=offsets,
        cu_seq_lens_k=offsets,
        use_cache=True,
        logits_to_keep=(offsets[1:] - 1).long().to(model.device),
        **{argument: cache},
    )
    if not cache.layers or cache.get_seq_length() != offsets[-1]:
        raise PadlessError(
            f"{type(model).__name__} did not fill the cache it was given: there is nothing to go on from"
        )
    caches = _split_cache(cache, lengths, model.config)
    return [
        Prefilled(input_ids=ids[None], logits=logits, cache=own, cache_argument=argument)
        for ids, logits, own in zip(tokens, output.logits[0], caches, strict=True)
    ]


def _split_cache(cache: Any, lengths: list[int], config: Any) -> list[DynamicCache]:
    """A cache per prompt, of the kinds of layers the config asks for: sliding layers keep only their window."""
    caches = [DynamicCache(config=config) for _ in lengths]
    for index, layer in enumerate(cache.layers):
        keys, values = layer.keys.split(lengths, dim=-2), layer.values.split(lengths, dim=-2)
        for own, key, value in zip(caches, keys, values, strict=True):
            own.update(key, value, index)
    return caches
