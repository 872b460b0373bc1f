"""Where each framework goes wrong in silence, and what the dialects do about it."""

import dataclasses

import numpy as np
import pytest
import torch

from padless import Rule, collate
from padless.errors import PadlessError
from padless.frameworks.dialects import dialect

SAMPLES = [[7, 8, 9], [4, 5], [3, 2, 6, 1]]


def test_megatron_fields_follow_the_installed_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core import packed_seq_params as module

    @dataclasses.dataclass
    class Newer(module.PackedSeqParams):
        total_tokens: int | None = None
        pad_between_seqs: bool | None = None

    monkeypatch.setattr(module, "PackedSeqParams", Newer)
    params = dialect("megatron")(collate(SAMPLES, align=4))["packed_seq_params"]
    assert params.total_tokens == 12, "without it there is no seq_idx and Mamba carries its state across segments"
    assert params.pad_between_seqs is True
    assert dialect("megatron")(collate(SAMPLES))["packed_seq_params"].pad_between_seqs is False


def test_megatron_cuts_every_extent_for_context_parallel_ranks() -> None:
    """Each padded extent divides into 2 * cp chunks, with tails too; a stream that does not is refused."""
    params = dialect("megatron")(collate([SAMPLES, SAMPLES], align=4, capacity=32))["packed_seq_params"]
    assert (params.cu_seqlens_q_padded % 4 == 0).all()
    batch = collate([[7, 8, 9]], align=4, pad_to_multiple=7)
    with pytest.raises(PadlessError, match="no multiple of align=4"):
        dialect("megatron")(batch)


def test_megatron_padding_is_never_one_long_segment() -> None:
    params = dialect("megatron")(collate([[7, 8, 9]], align=4, pad_to_multiple=1024))["packed_seq_params"]
    assert params.cu_seqlens_q_padded.diff().max() <= 128


def test_megatron_tables_are_never_as_long_as_a_stream_of_several_segments() -> None:
    """Megatron's RoPE takes a table of that length for absolute positions; static shapes must not lead there."""
    params = dialect("megatron")(collate(SAMPLES, static=(16, 8)))["packed_seq_params"]
    assert params.max_seqlen_q == 7, "the tail, cut to short segments"
    assert params.cu_seqlens_q_padded[-1] == 16


def test_megatron_takes_loss_weights_as_its_mask() -> None:
    batch = collate([[7, 8, 9], [4, 5]], loss_weights="per-sample")
    assert dialect("megatron")(batch)["loss_mask"].tolist() == [[0.5, 0.5, 0.0, 1.0, 0.0]]


def test_positions_of_qwen_vl_have_four_axes() -> None:
    text = np.arange(3)
    four = collate([{"input_ids": [1, 2, 3], "position_ids": np.stack([text, text, text, text])}])
    assert dialect("transformers")(four)["position_ids"].shape == (4, 1, 3)
    three = collate([{"input_ids": [1, 2, 3], "position_ids": np.stack([text, text, text])}])
    with pytest.raises(PadlessError, match="without the text position"):
        dialect("transformers")(three)


def test_a_padding_id_that_is_a_real_token_changes_nothing() -> None:
    """Padding is masked by position: a real EOS stays a target where padding is EOS too."""
    rows = [[{"input_ids": [5, 6, 2], "targets": [False, True, True]}]]
    batch = collate(rows, capacity=6, pad_id=2)
    assert dialect("transformers")(batch)["labels"].tolist() == [[-100, 6, 2, -100, -100, -100]]
    assert dialect("megatron")(batch)["loss_mask"].tolist() == [[1, 1, 0, 0, 0, 0]]
    assert (dialect("jax")(batch)["targets_segmentation"] != 0).tolist() == [[True, True, False, False, False, False]]


@pytest.mark.parametrize("name", ["transformers", "trl", "megatron", "nemo", "jax"])
def test_a_rule_that_a_framework_cannot_say_is_refused(name: str) -> None:
    sample = {"input_ids": [1, 2, 3], "prefix_length": 2}
    batch = collate([sample], capacity=None if name in ("trl", "nemo") else 4, rule=Rule(kind="prefix-lm"))
    with pytest.raises(PadlessError, match="cannot be said in the"):
        dialect(name)(batch)
    assert dialect("plain")(collate([sample], rule=Rule(kind="prefix-lm")))["ranks"].tolist() == [0, 0, 1]


@pytest.mark.parametrize("name", ["trl", "nemo"])
def test_tables_of_rows_refuse_padding(name: str) -> None:
    with pytest.raises(PadlessError, match="are padding"):
        dialect(name)(collate([[1, 2, 3]], capacity=4))


def test_rows_without_one_width_are_no_rectangle() -> None:
    with pytest.raises(PadlessError, match="no common width"):
        dialect("jax")(collate([[[1, 2, 3]], [[4]]]))


def test_an_unknown_dialect_is_told_which_there_are() -> None:
    with pytest.raises(PadlessError, match="there are plain, transformers, trl, megatron, nemo, jax"):
        dialect("keras")


@pytest.mark.interop
def test_a_transformers_model_isolates_what_the_dialect_says() -> None:
    """Logits of packed segments are those of each segment alone; a mask of ones breaks it, which is the trap."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=100, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    model = LlamaForCausalLM(config).double().eval()
    batch = collate(SAMPLES, align=2, pad_to_multiple=16)
    kwargs = dialect("transformers")(batch)
    with torch.no_grad():
        packed = batch.unpack(model(**kwargs, use_cache=False).logits)
        leaking = batch.unpack(model(**kwargs, use_cache=False, attention_mask=torch.ones(1, 16)).logits)
        alone = [model(torch.tensor([ids]), use_cache=False).logits[0] for ids in SAMPLES]
    for mine, expected in zip(packed, alone, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-12)
    assert (leaking[1] - alone[1]).abs().max() > 1e-3
