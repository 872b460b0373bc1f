"""Layouts, prompts, views: what goes in, against counts by hand and choices by brute force."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.errors import PadlessError
from padless.frameworks.pi05 import PI0, PI05, PI05_LIBERO, PolicyLayout, drop_masked, prompt_buckets, prompt_slice
from padless.frameworks.pi05.views import embed_views


def test_slots_of_the_published_models() -> None:
    assert (PI0.slots, PI05.slots, PI05_LIBERO.slots) == (867, 1018, 978)
    assert PI05_LIBERO.tokens(views=2, prompt=60) == 582
    assert PI0.tokens(views=1, prompt=20) == 327
    with pytest.raises(PadlessError, match="do not fit"):
        PI0.tokens(views=4, prompt=1)
    with pytest.raises(PadlessError, match="different names"):
        PolicyLayout(cameras=("a", "a"), prompt_slots=1, actions=1)


# Prompts --------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    left=st.booleans(),
    buckets=st.none() | st.lists(st.integers(1, 12), min_size=1, max_size=3),
)
def test_cut_prompts_keep_every_real_token(lengths, left, buckets) -> None:
    mask = np.arange(12) < np.array(lengths)[:, None]
    mask = mask[:, ::-1] if left else mask
    columns = prompt_slice(mask, buckets)
    width = columns.stop - columns.start
    assert mask[:, columns].sum() == mask.sum()
    longest = max(1, *lengths)
    if buckets is None:
        assert width == longest
    else:
        assert width == min((b for b in buckets if b >= longest), default=12)


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12), batch=st.integers(1, 4), shapes=st.integers(1, 4))
def test_buckets_are_the_best_there_are(lengths, batch, shapes) -> None:
    values, counts = np.unique(lengths, return_counts=True)
    chance = np.diff((np.cumsum(counts) / len(lengths)) ** batch, prepend=0.0)

    def width(buckets: tuple[int, ...]) -> float:
        return sum(p * min(b for b in buckets if b >= v) for p, v in zip(chance, values, strict=True))

    found = prompt_buckets(lengths, batch=batch, shapes=shapes)
    assert len(found) <= shapes
    assert found[-1] == max(lengths)
    choices = itertools.combinations(values[:-1].tolist(), min(shapes, len(values)) - 1)
    assert width(found) <= min(width((*some, int(values[-1]))) for some in choices) + 1e-12


@pytest.mark.parametrize("lengths", [[], [0], [[1]]])
def test_impossible_prompt_lengths_are_refused(lengths) -> None:
    with pytest.raises(PadlessError):
        prompt_buckets(lengths, batch=1, shapes=1)


# Views ----------------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=5).filter(lambda m: any(map(any, m)))
)
def test_views_move_together_in_their_order(there: list[list[bool]]) -> None:
    samples = len(there)
    images = [torch.full((samples, 1), 10.0 * slot) + torch.arange(samples)[:, None] for slot in range(3)]
    calls = []

    def tower(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        return x[:, :, None].expand(-1, 2, 4)

    views = embed_views(tower, images, list(torch.tensor(there).unbind(1)))
    assert calls == [views.count] == [sum(map(sum, there))]
    for row, mask in enumerate(there):
        expected = [10.0 * slot + row for slot in range(3) if mask[slot]]
        assert views.features[row][views.real[row]][::2, 0].tolist() == expected
        assert not views.features[row][~views.real[row]].any()


def test_masked_slots_leave_and_others_do_not() -> None:
    views = {"base": 1, "left": 2, "right": 3}
    masks = {
        "base": torch.tensor([True, True]),
        "left": torch.tensor([False, True]),
        "right": torch.tensor([False] * 2),
    }
    kept, kept_masks = drop_masked(views, masks)
    assert list(kept) == list(kept_masks) == ["base", "left"]
    with pytest.raises(PadlessError, match="attended to in 1 of 2 samples"):
        drop_masked(views, masks, ["left"])
    with pytest.raises(PadlessError, match="it has no mask"):
        drop_masked(views, {}, ["base"])
    with pytest.raises(PadlessError, match="there is no camera slot 'top'"):
        drop_masked(views, masks, ["top"])
    with pytest.raises(PadlessError, match="a policy without a view"):
        drop_masked({"right": 3}, masks)


def test_a_batch_without_any_view_encodes_one_that_stays_masked() -> None:
    """A rank whose tower never ran would leave the others waiting for its gradients."""
    views = embed_views(lambda x: x[:, None], [torch.ones(2, 1)] * 2, [torch.zeros(2, dtype=torch.bool)] * 2)
    assert (views.count, views.features.shape, views.real.any().item()) == (1, (2, 1, 1), False)


def test_a_mask_too_few_does_not_lose_a_view() -> None:
    with pytest.raises(PadlessError, match="1 image masks for 2 camera slots"):
        embed_views(lambda x: x, [torch.zeros(2, 1)] * 2, [torch.ones(2, dtype=torch.bool)])
