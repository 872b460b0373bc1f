"""A padding-free pi0 or pi0.5 is the padded one: losses and gradients, float64, and every way to get it wrong shows."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.errors import PadlessError
from padless.frameworks.pi05 import PolicyRows, block_rows, padding_free, policy_attention, trim
from padless.frameworks.pi05.parts import ExpertLayer, attend, rotate
from padless.frameworks.pi05.small import SmallConfig, SmallPolicy, small_samples

CONFIGS = {"pi05": SmallConfig(), "pi0": SmallConfig(state=True), "pi05-one-action": SmallConfig(actions=1)}
TOLERANCE = 1e-9


@contextlib.contextmanager
def nan_filled_memory() -> Iterator[None]:
    """Uninitialised memory is NaN, so that reading a slot nobody wrote shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def policy_and_samples(name: str, views=(2, 3, 1, 2), prompts=(18, 7, 24, 1)) -> tuple[SmallPolicy, dict[str, Any]]:
    config = CONFIGS[name]
    samples = small_samples(config, views=views, prompts=prompts, dtype=torch.float64)
    return SmallPolicy(config, dtype=torch.float64), samples


def loss_and_gradients(policy: SmallPolicy, samples: dict[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    policy.zero_grad()
    losses = policy(**samples)
    losses.mean().backward()
    return losses.detach(), {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


def assert_same(found, expected) -> None:
    assert (found[0] - expected[0]).abs().max() < TOLERANCE
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        scale = gradient.abs().max().clamp(min=1e-3)
        assert ((found[1][name] - gradient).abs().max() / scale) < TOLERANCE, name


@pytest.mark.parametrize("install", [trim, padding_free])
@pytest.mark.parametrize("name", CONFIGS)
def test_losses_and_gradients_are_those_of_the_padded_policy(name, install) -> None:
    policy, samples = policy_and_samples(name)
    expected = loss_and_gradients(policy, samples)
    handle = install(policy)
    assert_same(loss_and_gradients(policy, samples), expected)
    assert handle.views == 8
    assert handle.view_slots == 12
    handle.remove()
    assert_same(loss_and_gradients(policy, samples), expected)


@pytest.mark.parametrize("install", [trim, padding_free])
def test_a_batch_without_any_view_runs_as_it_does_padded(install) -> None:
    policy, samples = policy_and_samples("pi05", views=(0, 0), prompts=(5, 9))
    expected = loss_and_gradients(policy, samples)
    install(policy)
    assert_same(loss_and_gradients(policy, samples), expected)


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_ragged_batch(data) -> None:
    samples = data.draw(st.integers(1, 5))
    views = data.draw(st.lists(st.integers(0, 3), min_size=samples, max_size=samples))
    prompts = data.draw(st.lists(st.integers(1, 24), min_size=samples, max_size=samples))
    policy, inputs = policy_and_samples(data.draw(st.sampled_from(["pi05", "pi0"])), views, prompts)
    shuffle = data.draw(st.permutations(range(3)))  # views need not be the first slots
    inputs["images"] = [inputs["images"][i] for i in shuffle]
    inputs["img_masks"] = [inputs["img_masks"][i] for i in shuffle]
    with torch.no_grad():
        expected = policy(**inputs)
        padding_free(policy)
        assert (policy(**inputs) - expected).abs().max() < TOLERANCE


def test_what_a_masked_slot_shows_changes_nothing_and_is_not_encoded() -> None:
    policy, samples = policy_and_samples("pi05")
    padding_free(policy)
    seen = []
    policy.paligemma_with_expert.tower.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[0]))
    before = policy(**samples)
    for image, mask in zip(samples["images"], samples["img_masks"], strict=True):
        image[~mask] = float("nan")
    samples["tokens"] = torch.where(samples["masks"], samples["tokens"], 0)
    assert torch.equal(policy(**samples), before)
    assert seen == [8, 8]


def test_one_call_of_the_tower_two_plain_attention_calls_and_one_gather_of_keys(monkeypatch) -> None:
    policy, samples = policy_and_samples("pi05")
    handle = padding_free(policy)
    policy(**samples)
    assert handle.rows is not None
    [prefix], [suffix] = handle.rows.prefix_calls, handle.rows.suffix_calls
    assert not prefix.causal
    assert not suffix.causal
    assert prefix.q_index is prefix.k_index is suffix.q_index is None
    assert np.array_equal(suffix.k_index, handle.rows.order)
    policy, samples = policy_and_samples("pi0")
    handle = padding_free(policy)
    policy(**samples)
    assert (len(handle.rows.prefix_calls), len(handle.rows.suffix_calls)) == (1, 2)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["pi05", "pi0"])
def test_two_batches_in_flight_keep_their_own_rows(name) -> None:
    """Gradient accumulation over a summed loss, with each layer recomputed in backward."""
    policy, first = policy_and_samples(name)
    _, second = policy_and_samples(name, views=(1, 1, 2, 3), prompts=(3, 9, 2, 20))

    def both() -> dict[str, torch.Tensor]:
        policy.zero_grad()
        losses = [
            torch.utils.checkpoint.checkpoint(lambda s=s: policy(**s), use_reentrant=False) for s in (first, second)
        ]
        (losses[0].mean() + losses[1].mean()).backward()
        return {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}

    expected = both()
    padding_free(policy)
    found = both()
    for key, gradient in expected.items():
        assert (found[key] - gradient).abs().max() <= TOLERANCE * gradient.abs().max().clamp(min=1e-3), key


# The other way round: each of these mistakes must show ----------------------------------------------------------------


class _Wrong:
    """Rows with one thing in them wrong."""

    @staticmethod
    def no_segments(rows: PolicyRows) -> PolicyRows:
        prefix, suffix = rows.num_prefix, rows.num_tokens - rows.num_prefix
        wrong = PolicyRows.of(np.ones((1, prefix)), suffix_ranks=np.ones(suffix, int))
        return _with(wrong, rows, positions=rows.positions)

    @staticmethod
    def global_positions(rows: PolicyRows) -> PolicyRows:
        return _with(rows, rows, positions=np.arange(rows.num_tokens))

    @staticmethod
    def causal_blocks(rows: PolicyRows) -> PolicyRows:
        ranks = np.arange(1000)
        return _with(_again(rows, prefix_ranks=ranks, suffix_ranks=1000 + ranks[:5]), rows, positions=rows.positions)

    @staticmethod
    def causal_prefix(rows: PolicyRows) -> PolicyRows:
        return _with(_again(rows, prefix_ranks=np.arange(1000), suffix_ranks=1000), rows, positions=rows.positions)

    @staticmethod
    def causal_suffix(rows: PolicyRows) -> PolicyRows:
        return _with(_again(rows, prefix_ranks=0, suffix_ranks=1 + np.arange(5)), rows, positions=rows.positions)


def _again(rows: PolicyRows, *, prefix_ranks, suffix_ranks) -> PolicyRows:
    """The same tokens with other ranks."""
    suffix = np.full(5, suffix_ranks) if np.ndim(suffix_ranks) == 0 else suffix_ranks
    prefixes = rows.batch.lengths - len(suffix)
    real = np.arange(prefixes.max()) < prefixes[:, None]
    ranks = prefix_ranks if np.ndim(prefix_ranks) == 0 else prefix_ranks[: real.shape[1]]
    return PolicyRows.of(real, prefix_ranks=ranks, suffix_ranks=suffix)


def _with(rows: PolicyRows, template: PolicyRows, *, positions: np.ndarray) -> PolicyRows:
    changed = PolicyRows(
        batch=rows.batch,
        order=rows.order,
        prefix_index=template.prefix_index,
        suffix_index=template.suffix_index,
        padded=template.padded,
    )
    changed.__dict__["positions"] = positions
    return changed


@pytest.mark.parametrize(
    "control", ["no_segments", "global_positions", "causal_blocks", "causal_prefix", "causal_suffix"]
)
def test_wrong_rows_give_wrong_losses(control, monkeypatch) -> None:
    from padless.frameworks.pi05 import installing as home

    policy, samples = policy_and_samples("pi05")
    expected = policy(**samples).detach()
    right = home._rows
    monkeypatch.setattr(home, "_rows", lambda *given: getattr(_Wrong, control)(right(*given)))
    home.padding_free(policy)
    error = (policy(**samples) - expected).abs().max() / expected.std()
    assert error > 1e-3, f"{control} went unnoticed ({error:.1e})"


def test_one_condition_for_the_whole_row_gives_wrong_losses(monkeypatch) -> None:
    from padless.frameworks.pi05 import experts

    policy, samples = policy_and_samples("pi05")
    expected = policy(**samples).detach()
    monkeypatch.setattr(experts, "_per_token", lambda cond, *_: None if cond is None else cond[:1, None])
    padding_free(policy)
    assert (policy(**samples) - expected).abs().max() / expected.std() > 1e-3


# Real views are not padding -------------------------------------------------------------------------------------------


def test_masking_a_real_view_equals_removing_it_and_differs_from_keeping_it() -> None:
    policy, samples = policy_and_samples("pi05", views=(3, 3, 3), prompts=(4, 9, 2))
    whole = policy(**samples)
    masked = samples | {"img_masks": [*samples["img_masks"][:2], torch.zeros(3, dtype=torch.bool)]}
    removed = samples | {"images": samples["images"][:2], "img_masks": samples["img_masks"][:2]}
    assert (policy(**masked) - policy(**removed)).abs().max() < TOLERANCE
    assert (policy(**masked) - whole).abs().max() > 1e-3


def test_a_blank_view_that_is_not_masked_stays() -> None:
    """pi0-FAST's black image with mask True: the model sees it, so leaving it out would change the loss."""
    policy, samples = policy_and_samples("pi05", views=(3, 3, 3), prompts=(4, 9, 2))
    samples["images"][2] = torch.zeros_like(samples["images"][2])
    expected = policy(**samples)
    handle = padding_free(policy)
    assert (policy(**samples) - expected).abs().max() < TOLERANCE
    assert handle.views == handle.view_slots == 9


# pi0-FAST -------------------------------------------------------------------------------------------------------------


def test_prefix_lm_rows_equal_the_padded_model_with_two_plain_calls() -> None:
    torch.manual_seed(0)
    layer = ExpertLayer(24, 48, 4, 8, None).double()
    real = torch.tensor([[1, 1, 1, 0, 1, 1, 0], [1, 1, 0, 0, 1, 1, 1], [1, 0, 0, 0, 1, 0, 0]]).bool()
    starts = torch.tensor([0, 0, 0, 0, 1, 1, 1]).expand(3, 7)
    x = torch.randn(3, 7, 24, dtype=torch.float64, requires_grad=True)

    def run(x, positions, mask):
        (q, k, v), gate = layer.before(x, None)
        return layer.after(x, attend(rotate(q, positions), rotate(k, positions), v, mask), None, gate)

    ranks = starts.cumsum(1)
    dense = (ranks[:, None] <= ranks[:, :, None]) & real[:, None]
    expected = run(x, real.cumsum(1) - 1, dense)[real]
    batch, index = block_rows(real, starts)
    from padless.attention import varlen_attention
    from padless.masks.calls import varlen_calls

    assert [call.causal for call in varlen_calls(batch)] == [False, True]
    row = x.flatten(0, 1)[torch.from_numpy(index)][None]
    (q, k, v), gate = layer.before(row, None)
    positions = torch.from_numpy(batch.position_ids)[None]
    out = varlen_attention(rotate(q, positions)[0], rotate(k, positions)[0], v[0], batch)
    found = layer.after(row, out[None], None, gate)[0]
    assert (found - expected).abs().max() < TOLERANCE
    weights = torch.randn_like(expected)
    gradients = [torch.autograd.grad((y * weights).sum(), x, retain_graph=True)[0] for y in (found, expected)]
    assert (gradients[0] - gradients[1]).abs().max() < TOLERANCE


# Rows against a mask written out --------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_policy_attention_equals_the_dense_block_mask_on_nan_filled_memory(data) -> None:
    samples, slots = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    real = np.array(
        data.draw(st.lists(st.lists(st.booleans(), min_size=slots, max_size=slots), min_size=samples, max_size=samples))
    )
    real[:, data.draw(st.integers(0, slots - 1))] = True
    prefix_blocks = np.cumsum(data.draw(st.lists(st.integers(0, 1), min_size=slots, max_size=slots)))
    blocks = prefix_blocks[-1] + np.cumsum([1, *data.draw(st.lists(st.integers(0, 1), max_size=4))])
    behind = np.array(
        data.draw(
            st.lists(
                st.lists(st.booleans(), min_size=len(blocks), max_size=len(blocks)), min_size=samples, max_size=samples
            )
        )
    )
    behind[:, data.draw(st.integers(0, len(blocks) - 1))] = True
    rows = PolicyRows.of(real, prefix_ranks=prefix_blocks, suffix_ranks=blocks, suffix_mask=behind)
    q, k, v = torch.randn(3, rows.num_tokens, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with nan_filled_memory():
        found = policy_attention(q, k, v, rows)
    sample = np.concatenate([np.repeat(np.arange(samples), mask.sum(1)) for mask in (real, behind)])
    rank = np.concatenate([np.tile(prefix_blocks, (samples, 1))[real], np.tile(blocks, (samples, 1))[behind]])
    seen = torch.from_numpy((sample[:, None] == sample) & (rank <= rank[:, None]))
    scores = torch.einsum("qhd,khd->hqk", q, k) / 2
    expected = torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)
    assert (found - expected).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"prefix_mask": [[1, 1], [0, 0]], "suffix_ranks": [1]}, "sample 1 has no real prefix token"),
        ({"prefix_mask": [1, 1], "suffix_ranks": [1]}, "must be .samples, slots."),
        ({"prefix_mask": [[1]], "suffix_ranks": [1, 1], "suffix_mask": [[1]]}, "suffix_mask has shape"),
    ],
)
def test_impossible_rows_are_refused(given, says) -> None:
    with pytest.raises(PadlessError, match=says):
        PolicyRows.of(**given)


def test_a_prefix_that_sees_its_suffix_is_refused() -> None:
    with pytest.raises(PadlessError, match="prefixes see suffixes"):
        _ = PolicyRows.of([[1, 1]], suffix_ranks=[0, 0]).prefix_calls


# Other precisions, compiled models ------------------------------------------------------------------------------------


@pytest.mark.parametrize("install", [trim, padding_free])
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_stays_within_its_noise(install, autocast) -> None:
    config = SmallConfig()
    dtype = torch.float32 if autocast else torch.bfloat16
    policy = SmallPolicy(config, dtype=dtype)
    samples = small_samples(config, views=(2, 3, 1, 2), prompts=(18, 7, 24, 1), dtype=dtype)
    exact = SmallPolicy(config, dtype=torch.float64)
    reference = exact(**{k: _double(v) for k, v in samples.items()})
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        noise = (policy(**samples).double() - reference).abs().max()
        install(policy)
        losses = policy(**samples)
    assert (losses.double() - reference).abs().max() < 2 * noise
    losses.float().mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in policy.parameters() if p.grad is not None)


def _double(value: Any) -> Any:
    if isinstance(value, list):
        return [_double(each) for each in value]
    return value.double() if value.is_floating_point() else value


# Dynamo looks at .grad of what comes out of a part that it does not trace.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("install", [trim, padding_free])
def test_a_compiled_forward_gives_the_same(install) -> None:
    """LeRobot compiles `model.forward` as a whole; what looks at masks on the host stays outside of the graph."""
    policy, samples = policy_and_samples("pi05")
    expected = loss_and_gradients(policy, samples)
    install(policy)
    forward = torch.compile(policy.forward, backend="eager")
    for views, prompts in (((2, 3, 1, 2), (18, 7, 24, 1)), ((1, 1, 1, 1), (2, 3, 4, 5))):
        _, given = policy_and_samples("pi05", views, prompts)
        policy.zero_grad()
        losses = forward(**given)
        losses.mean().backward()
        if views == (2, 3, 1, 2):
            found = losses.detach(), {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}
            assert_same(found, expected)
