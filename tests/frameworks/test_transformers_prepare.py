"""What `register` and `prepare` let through, what they refuse, and that the probe finds what it is there for."""

import copy
import itertools

import pytest
import torch

from padless.errors import PadlessError, ViolationError
from padless.frameworks.tiny_models import tiny_model
from padless.frameworks.transformers import prepare, register
from padless.frameworks.transformers.masks import MaskRequest, SegmentRule, padless_mask
from padless.frameworks.transformers.probing import probe

LENGTHS = (5, 9, 2)


def tokens() -> torch.Tensor:
    return torch.randint(3, 96, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(3))


def offsets(lengths=LENGTHS) -> torch.Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


def boundaries(lengths=LENGTHS) -> dict:
    return {"cu_seq_lens_q": offsets(lengths), "cu_seq_lens_k": offsets(lengths)}


@pytest.fixture(scope="module")
def llama():
    model = tiny_model("llama")
    prepare(model)
    return model


@pytest.fixture
def by_name():
    register()
    return tiny_model("llama", attention="padless")


class TestByNameAlone:
    """`attn_implementation="padless"` without `prepare`."""

    def test_boundaries_isolate_whatever_cache_and_mask_say(self, by_name):
        ids = tokens()
        parts = ids.split(LENGTHS, dim=1)
        alone = torch.cat([by_name(input_ids=part).logits for part in parts], dim=1)
        positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
        for extra in ({}, {"use_cache": True}, {"attention_mask": torch.ones_like(ids)}):
            packed = by_name(input_ids=ids, position_ids=positions, **boundaries(), **extra).logits
            torch.testing.assert_close(packed, alone, rtol=0, atol=1e-12)

    def test_positions_that_restart_without_boundaries_are_refused(self, by_name):
        positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
        for extra in ({}, {"use_cache": False}):
            with pytest.raises(PadlessError, match="no boundaries came with the call"):
                by_name(input_ids=tokens(), position_ids=positions, **extra)

    def test_a_mask_with_zeros_beside_boundaries_is_refused(self, by_name):
        mask = torch.ones_like(tokens())
        mask[:, -1] = 0
        with pytest.raises(PadlessError, match="attention_mask with zeros"):
            by_name(input_ids=tokens(), attention_mask=mask, **boundaries())

    def test_a_ready_made_mask_beside_boundaries_is_refused(self, by_name):
        mask = torch.zeros(1, 1, sum(LENGTHS), sum(LENGTHS), dtype=torch.float64)
        with pytest.raises(PadlessError, match="ready-made attention mask"):
            by_name(input_ids=tokens(), attention_mask=mask, **boundaries())

    def test_a_model_with_a_state_is_sent_to_prepare(self):
        register()
        model = tiny_model("jamba", attention="padless")
        with pytest.raises(PadlessError, match="layers with a state"):
            model(input_ids=tokens(), use_cache=False, **boundaries())

    def test_boundaries_are_read_once_for_all_layers_and_again_when_they_change(self, by_name):
        ids, given = tokens(), boundaries()
        first = by_name(input_ids=ids, **given).logits
        given["cu_seq_lens_q"][1:3] += 1  # in place: the same tensor says something else now
        given["cu_seq_lens_k"] = given["cu_seq_lens_q"]
        assert not torch.equal(by_name(input_ids=ids, **given).logits, first)


class TestOrdinaryCalls:
    """A prepared model stays the model it was where no boundaries are given."""

    @pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "gemma3_text", "bloom", "bamba", "lfm2"])
    def test_padded_batches_and_generation_are_unchanged(self, name):
        shipped = tiny_model(name, dtype=torch.float32)  # Transformers' eager attention gives NaN in float64 here
        model = copy.deepcopy(shipped)
        prepare(model)
        ids = tokens().view(2, 8)
        mask = torch.ones_like(ids)
        mask[0, :3] = 0
        with torch.no_grad():
            mine = model(input_ids=ids, attention_mask=mask).logits[mask.bool()]
            theirs = shipped(input_ids=ids, attention_mask=mask).logits[mask.bool()]
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4)
        ask = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
        assert torch.equal(model.generate(ids, **ask), shipped.generate(ids, **ask))

    def test_restarting_positions_are_refused(self, llama):
        positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
        for mask in (None, torch.ones_like(tokens())):
            with pytest.raises(PadlessError, match="no boundaries came with the call"):
                llama(input_ids=tokens(), position_ids=positions, attention_mask=mask)

    def test_a_ready_made_block_mask_is_the_callers_own_business(self, llama):
        ids = tokens()
        owner = torch.repeat_interleave(torch.arange(3), torch.tensor(LENGTHS))
        block = (owner[:, None] == owner[None]) & torch.ones(16, 16, dtype=torch.bool).tril()
        positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
        by_mask = llama(input_ids=ids, position_ids=positions, attention_mask=block[None, None]).logits
        packed = llama(input_ids=ids, **boundaries()).logits
        torch.testing.assert_close(by_mask, packed, rtol=0, atol=1e-12)


class TestPackedCalls:
    def test_a_mask_of_ones_and_positions_that_agree_change_nothing(self, llama):
        ids = tokens()
        plain = llama(input_ids=ids, **boundaries()).logits
        positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
        mask = torch.ones_like(ids)
        assert torch.equal(
            llama(input_ids=ids, position_ids=positions, attention_mask=mask, **boundaries()).logits, plain
        )
        assert torch.equal(llama(ids, mask, positions, **boundaries()).logits, plain)

    def test_empty_segments_change_nothing(self, llama):
        ids = tokens()
        padded = {"cu_seq_lens_q": torch.tensor([0, 0, 5, 14, 14, 16, 16]), "max_length_q": 9}
        assert torch.equal(llama(input_ids=ids, **padded).logits, llama(input_ids=ids, **boundaries()).logits)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"cu_seq_lens_q": torch.tensor([0, 14, 5, 16])}, "goes down"),
            ({"cu_seq_lens_q": torch.tensor([0, 5, 14, 17])}, "belong to nobody"),
            ({"cu_seq_lens_q": torch.tensor([1, 5, 14, 16])}, "belong to nobody"),
            ({"cu_seq_lens_q": torch.tensor([0.0, 5, 14, 16])}, "expected int32 offsets"),
            ({"cu_seq_lens_k": torch.tensor([0, 6, 14, 16])}, "differ"),
            ({"cu_seq_lens_q": None}, "without cu_seq_lens_q"),
            ({"max_length_q": 8}, "longest segment has 9"),
            ({"seq_idx": torch.tensor([[0] * 6 + [1] * 8 + [2] * 2])}, "disagree about a boundary at token 5"),
            ({"seq_idx": torch.tensor([[0, 1]])}, "one per token"),
            ({"position_ids": torch.arange(16)[None]}, "disagree at token 5"),
            ({"attention_mask": torch.tensor([[1] * 5 + [2] * 9 + [3] * 2])}, "not all ones"),
            ({"attention_mask": torch.tensor([[1] * 14 + [0] * 2])}, "not all ones"),
            ({"use_cache": True}, "one cache would hold all segments"),
        ],
    )
    def test_what_contradicts_the_boundaries_is_refused(self, llama, change, message):
        given = {"cu_seq_lens_q": offsets(), **change}
        if "cu_seq_lens_q" in change and change["cu_seq_lens_q"] is None:
            given["cu_seq_lens_k"] = offsets()
        with pytest.raises(PadlessError, match=message):
            llama(input_ids=tokens(), **given)
        assert llama(input_ids=tokens()).logits is not None  # a refusal leaves no call open

    def test_a_segment_over_the_end_of_a_row_is_refused(self, llama):
        with pytest.raises(PadlessError, match="no segment starts at token 8"):
            llama(input_ids=tokens().view(2, 8), **boundaries())

    def test_a_filled_cache_is_refused(self, llama):
        cache = llama(input_ids=tokens(), use_cache=True).cache
        with pytest.raises(PadlessError, match="holds 16 tokens"):
            llama(input_ids=tokens(), cache=cache, **boundaries())

    def test_layers_called_past_the_gate_are_refused(self, llama):
        attention = llama.model.layers[0].self_attn
        hidden = torch.zeros(1, 4, 64, dtype=torch.float64)
        cos_sin = llama.model.rotary_emb(hidden, torch.arange(4)[None])
        with pytest.raises(PadlessError, match="outside of its model's forward"):
            attention(hidden, position_embeddings=cos_sin, attention_mask=None)

    def test_the_inner_model_may_be_called_itself(self, llama):
        ids = tokens()
        inner = llama.model(input_ids=ids, **boundaries()).last_hidden_state
        torch.testing.assert_close(llama.lm_head(inner), llama(input_ids=ids, **boundaries()).logits)

    def test_output_attentions_is_refused(self, llama):
        with pytest.raises(PadlessError, match="output_attentions"):
            llama(input_ids=tokens(), output_attentions=True, **boundaries())

    @pytest.mark.parametrize("name", ["llama", "bamba", "bloom"])
    @pytest.mark.parametrize("reentrant", [True, False])
    def test_gradient_checkpointing_recomputes_inside_the_same_boundaries(self, name, reentrant):
        def gradients(checkpointing: bool) -> dict[str, torch.Tensor]:
            model = tiny_model(name).train()
            prepare(model)
            if checkpointing:
                model.activation_checkpointing_enable({"use_reentrant": reentrant})
                model.enable_input_require_grads()
            first = model(input_ids=tokens(), **boundaries()).logits.square().sum()
            second = (
                model(input_ids=tokens(), **boundaries((8, 8))).logits.square().sum()
            )  # before the first's backward
            (first + second).backward()
            return {key: value.grad for key, value in model.named_parameters() if value.grad is not None}

        plain, recomputed = gradients(False), gradients(True)
        for key, gradient in plain.items():
            torch.testing.assert_close(recomputed[key], gradient, rtol=1e-10, atol=1e-12)

    @pytest.mark.parametrize("name", ["llama", "gemma2", "deepseek_v3", "qwen3_next"])
    def test_mixed_precision_is_as_near_to_full_precision_as_in_the_shipped_model(self, name):
        """Trainer's `bf16=True` is autocast: rotary embeddings hand float32 queries beside bfloat16 values."""
        shipped, ids = tiny_model(name).float(), tokens()
        model = copy.deepcopy(shipped)
        prepare(model)
        full = torch.cat([shipped(input_ids=part).logits for part in ids.split(LENGTHS, dim=1)], dim=1)
        with torch.autocast("cpu", torch.bfloat16):
            theirs = torch.cat([shipped(input_ids=part).logits for part in ids.split(LENGTHS, dim=1)], dim=1)
            mine = model(input_ids=ids, **boundaries()).logits
        assert (mine - full).norm() < 1.5 * (theirs - full).norm()
        mine.float().square().sum().backward()
        assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())

    def test_a_copy_is_as_prepared_as_its_model(self):
        model = tiny_model("bamba")
        prepare(model)
        twin = copy.deepcopy(model)
        for parameter in model.parameters():
            parameter.data.zero_()
        assert probe(twin).moved == 0.0
        assert twin(input_ids=tokens(), **boundaries()).logits.abs().max() > 0

    def test_preparing_twice_is_preparing_once(self):
        model = tiny_model("lfm2")
        assert str(prepare(model)) == str(prepare(model))
        assert type(model.model.layers[0].conv).__name__ == "SegmentwiseLfm2ShortConv"

    def test_roberta_takes_positions_of_either_convention(self):
        model = tiny_model("roberta")
        prepare(model)
        from_zero = torch.cat([torch.arange(n) for n in LENGTHS])[None]
        plain = model(input_ids=tokens(), **boundaries()).logits
        for positions in (from_zero, from_zero + 1):  # its padding_idx is 0 here
            assert torch.equal(model(input_ids=tokens(), position_ids=positions, **boundaries()).logits, plain)


class TestTheProbe:
    def test_it_names_the_layer_that_leaks(self):
        model = tiny_model("lfm2")
        prepare(model)
        layer = model.model.layers[0].conv
        layer.__class__ = type(layer).__mro__[3]  # back to the shipped short convolution, which leaks
        with pytest.raises(ViolationError, match=r"leaks.*first in model\.layers\.0\.conv"):
            probe(model)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_in_models_with_experts_it_asks_each_part_by_itself(self, dtype):
        model = tiny_model("qwen3_next", dtype=dtype)
        prepare(model)
        layer = model.model.layers[0].linear_attn
        layer.out_proj.weight.data.mul_(1e-3)  # a leak far below what rounding may do after experts in bfloat16
        layer.__class__ = type(layer).__mro__[3]
        with pytest.raises(ViolationError, match=r"leaks.*first in model\.layers\.0\.linear_attn"):
            probe(model)

    def test_it_finds_attention_that_ignores_boundaries(self):
        model = tiny_model("opt")
        prepare(model)
        model.set_attn_implementation("sdpa")  # OPT as shipped passes no positions to its mask
        with pytest.raises(ViolationError, match=r"leaks.*first in model\.decoder\.layers\.0\.self_attn"):
            probe(model)

    def test_it_finds_positions_that_do_not_restart(self, monkeypatch):
        model = tiny_model("gpt2")
        prepare(model)
        monkeypatch.setattr(
            "padless.frameworks.transformers.gate.packed_positions",
            lambda positions, boundaries, *, rows, length, first: torch.arange(length)[None].expand(rows, -1),
        )
        with pytest.raises(ViolationError, match="isolated but wrong"):
            probe(model)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("name", ["llama", "gpt_oss", "mixtral", "bamba", "gemma2", "bert"])
    def test_it_refuses_no_sound_model_for_its_rounding(self, name, dtype):
        report = prepare(tiny_model(name, dtype=dtype))
        assert report.probe is not None
        assert report.probe.moved < 0.05

    def test_it_leaves_modes_and_gradients_alone(self):
        model = tiny_model("llama").train()
        model.model.layers[0].eval()
        prepare(model)
        assert model.training
        assert not model.model.layers[0].training
        assert all(parameter.grad is None for parameter in model.parameters())

    def test_fused_kernels_that_are_not_there_are_not_pretended(self):
        with pytest.raises(PadlessError, match=r"cannot be packed: .*causal_conv1d"):
            prepare(tiny_model("bamba"), stateful="fused")

    def test_alibi_falcon_is_refused(self):
        from transformers import FalconConfig, FalconForCausalLM

        config = FalconConfig(vocab_size=96, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, alibi=True)
        with pytest.raises(PadlessError, match="linear biases"):
            prepare(FalconForCausalLM(config))


class TestReadingRules:
    def test_rules_are_read_from_transformers_own_masks(self):
        from transformers import masking_utils as hf

        cases = {
            SegmentRule(right=0): hf.causal_mask_function,
            SegmentRule(): hf.bidirectional_mask_function,
            SegmentRule(left=3, right=0): hf.sliding_window_causal_mask_function(4),
            SegmentRule(left=4, right=4): hf.sliding_window_bidirectional_mask_function(4),
            SegmentRule(right=0, chunk=5): hf.chunked_causal_mask_function(5, torch.zeros(1, dtype=torch.long)),
        }
        at = torch.arange(12)
        for rule, function in cases.items():
            request = padless_mask(batch_size=1, q_length=12, kv_length=12, mask_function=function)
            assert isinstance(request, MaskRequest)
            assert request.rule() == rule
            distance = at[None] - at[:, None]
            expected = torch.ones(12, 12, dtype=torch.bool)
            expected &= distance >= (-12 if rule.left is None else -rule.left)
            expected &= distance <= (12 if rule.right is None else rule.right)
            if rule.chunk:
                expected &= at[None] // rule.chunk == at[:, None] // rule.chunk
            dense = request.dense("sdpa")
            if dense is not None:
                assert torch.equal(dense[0, 0], expected)

    def test_a_mask_of_unknown_parts_is_refused_and_named(self):
        from transformers import masking_utils as hf

        blocks = hf.or_masks(hf.causal_mask_function, hf.blockwise_overlay(torch.zeros(1, 12, dtype=torch.long)))
        request = padless_mask(batch_size=1, q_length=12, kv_length=12, mask_function=blocks)
        with pytest.raises(PadlessError, match="or_mask"):
            request.rule()
