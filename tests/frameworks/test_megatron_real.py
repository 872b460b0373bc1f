"""The real megatron-core on a CPU: what it does with our rows, and the faults of its own data path that ours lacks."""

import dataclasses
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from padless import TokenStore, collate, plan
from padless.errors import PadlessError
from padless.frameworks.export import export
from padless.frameworks.megatron import MegatronDataset, check_megatron, megatron_batch, megatron_problems
from padless.frameworks.megatron import limits as limits_module
from padless.frameworks.megatron.limits import EXACT_FLOAT32
from padless.masks import megatron_packed_seq_params, packed_seq_params, transformer_engine_kwargs
from padless.training.context_parallel import ContextParallel

pytestmark = [
    pytest.mark.interop,
    # megatron-core warns of its own defaults, and wherever there is no GPU stack; neither changes anything here.
    pytest.mark.filterwarnings("ignore:Apex is not installed:UserWarning"),
    pytest.mark.filterwarnings("ignore:full scope is deprecated:UserWarning"),
]
EOD = 2
DOCUMENTS = [[5, 6, 7, EOD], [8, 9, EOD], [3, 4, 5, 6, EOD]]


def store_of(folder: Path, documents: list[list[int]]) -> TokenStore:
    return TokenStore.write(folder, documents, vocab_size=10, eod_id=EOD)


# Megatron's own data set over files of ours --------------------------------------------------------------------------


def gpt_dataset(prefix: Path, cache: Path, **settings: Any) -> Any:
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=11,
        blend=([str(prefix)], None),
        split="1,0,0",
        tokenizer=SimpleNamespace(eod=EOD, pad=0, vocab_size=10, unique_identifiers={"class": "none"}),
        path_to_cache=str(cache),
        **{"reset_position_ids": True, "reset_attention_mask": True, "eod_mask_loss": False, **settings},
    )
    return BlendedMegatronDatasetBuilder(GPTDataset, [1, 0, 0], lambda: True, config).build()[0]


@pytest.fixture
def rows(tmp_path: Path) -> MegatronDataset:
    store = store_of(tmp_path / "store", DOCUMENTS)
    return MegatronDataset(store, plan(store.lengths, 12, strategy="first-fit"), eod_id=EOD)


def crossings(item: dict) -> list[tuple[int, int]]:
    """`(input, label)` at ends of documents, where a label is trained on."""
    names = ("tokens", "labels", "loss_mask")
    fields = zip(*(item[name].reshape(-1).tolist() for name in names), strict=True)
    return [(token, label) for token, label, weight in fields if token == EOD and weight]


def test_gpt_dataset_trains_across_documents_and_ours_does_not(rows: MegatronDataset, tmp_path: Path) -> None:
    export(rows, tmp_path / "out", to="megatron")
    theirs = gpt_dataset(tmp_path / "out" / "rows", tmp_path / "cache")[0]
    assert sorted(theirs["tokens"].tolist() + theirs["labels"].tolist()[-1:]) == sorted(itertools.chain(*DOCUMENTS))
    assert len(crossings(theirs)) == 2, "EOD predicts the first token of the next document"
    ours = megatron_batch(rows[0])
    assert ours["tokens"].shape == (1, 12)
    assert crossings(ours) == []
    assert float(ours["loss_mask"].sum()) == 12 - 3
    trained = ours["labels"][ours["loss_mask"] > 0].tolist()
    assert trained.count(EOD) == 3, "each document's own EOD"


def test_eod_mask_loss_goes_by_id_and_ours_by_position(tmp_path: Path) -> None:
    """With EOD inside a document (the end of each turn), theirs masks what follows every one of them."""
    turns = [[5, EOD, 6, EOD], [7, EOD, 8, EOD, 9, EOD], [3, EOD]]
    store = store_of(tmp_path / "store", turns)
    rows = MegatronDataset(store, plan(store.lengths, 12, strategy="first-fit"), eod_id=EOD, eod_loss=False)
    export(rows, tmp_path / "out", to="megatron")
    theirs = gpt_dataset(tmp_path / "out" / "rows", tmp_path / "cache", eod_mask_loss=True)[0]
    assert crossings(theirs) == [], "so the starts of second turns are not trained on at all"
    ours = megatron_batch(rows[0])
    assert sorted(crossings(ours)) == [(EOD, 6), (EOD, 8), (EOD, 9)]
    assert ours["labels"][ours["loss_mask"] > 0].tolist().count(EOD) == 1 + 2 + 0, "all but each sample's last"


# Positions ----------------------------------------------------------------------------------------------------------


def zigzag(padded: list[int], ranks: int, rank: int) -> list[int]:
    """Slots of one context-parallel rank: of each extent the chunks `rank` and `2 * ranks - 1 - rank`."""
    slots = []
    for begin, end in itertools.pairwise(padded):
        chunk = (end - begin) // (2 * ranks)
        for part in (rank, 2 * ranks - 1 - rank):
            slots += range(begin + part * chunk, begin + (part + 1) * chunk)
    return slots


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_rope_turns_by_our_positions_on_every_context_parallel_rank(ranks: int) -> None:
    from megatron.core.models.common.embeddings.rope_utils import _apply_rotary_pos_emb_thd

    batch = collate([[[5] * 13, [6] * 3], [[7] * 9]], align=2 * ranks, capacity=48)
    packed = megatron_batch(batch)
    params = packed["packed_seq_params"]
    padded = params.cu_seqlens_q_padded
    angles = torch.arange(params.max_seqlen_q, dtype=torch.float64)[:, None, None, None].expand(-1, 1, 1, 2) / 100
    parallel = ContextParallel(ranks=ranks)
    for rank in range(ranks):
        slots = zigzag(padded.tolist(), ranks, rank) if ranks > 1 else list(range(batch.num_slots))
        mine = megatron_batch(batch, parallel=parallel, cp_rank=rank)
        for name in ("tokens", "labels", "loss_mask", "position_ids"):
            assert mine[name].tolist() == packed[name][:, slots].tolist(), "labels are shifted before they are cut"
        assert mine["packed_seq_params"].cu_seqlens_q_padded.tolist() == padded.tolist()
        ones = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(len(slots), 1, 2)
        group = SimpleNamespace(size=lambda: ranks, rank=lambda rank=rank: rank)
        turned = _apply_rotary_pos_emb_thd(ones, padded, angles, cp_group=group)
        positions = (torch.atan2(turned[:, 0, 1], turned[:, 0, 0]) * 100).round().long()
        real = torch.as_tensor(batch.segment_ids)[slots] > 0
        assert positions[real].tolist() == packed["position_ids"][0, slots][real].tolist()


# PackedSeqParams of other versions ----------------------------------------------------------------------------------


@dataclasses.dataclass
class PackedSeqParams019:
    """The thirteen fields of 0.19, and how it makes `seq_idx`, written from their description."""

    qkv_format: Any = None
    cu_seqlens_q: Any = None
    cu_seqlens_kv: Any = None
    cu_seqlens_q_padded: Any = None
    cu_seqlens_kv_padded: Any = None
    max_seqlen_q: Any = None
    max_seqlen_kv: Any = None
    local_cp_size: Any = None
    cp_group: Any = None
    total_tokens: Any = None
    seq_idx: Any = None
    tokens_per_sample: Any = None
    pad_between_seqs: Any = None

    def __post_init__(self) -> None:
        if self.total_tokens is not None:
            offsets = self.cu_seqlens_q if self.cu_seqlens_q_padded is None else self.cu_seqlens_q_padded
            ends = torch.cat([offsets, torch.tensor([self.total_tokens], dtype=offsets.dtype)])
            sizes = ends.diff().clamp(min=0)
            self.seq_idx = torch.repeat_interleave(torch.arange(len(sizes)), sizes)[None].to(torch.int32)


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core import packed_seq_params as module

    monkeypatch.setattr(module, "PackedSeqParams", PackedSeqParams019)


@pytest.mark.usefixtures("newer")
@pytest.mark.parametrize("static", [None, (32, 6)])
def test_seq_idx_of_0_19_parts_every_segment_and_all_padding(static: tuple[int, int] | None) -> None:
    batch = collate([[5, 6, 7], [8, 9], [3]], align=4, static=static, pad_to_multiple=1 if static else 16)
    params = megatron_packed_seq_params(batch)
    assert params.total_tokens == batch.num_slots == params.seq_idx.shape[1]
    assert params.pad_between_seqs is True
    for start, n in zip(batch.starts.tolist(), batch.lengths.tolist(), strict=True):
        inside = set(params.seq_idx[0, start : start + n].tolist())
        outside = set(params.seq_idx[0, :start].tolist()) | set(params.seq_idx[0, start + -(-n // 4) * 4 :].tolist())
        assert len(inside) == 1
        assert not inside & outside


@pytest.mark.usefixtures("newer")
def test_a_micro_batch_may_have_its_own_context_parallel_group() -> None:
    group = SimpleNamespace(size=lambda: 4)
    params = megatron_batch(collate([[5, 6, 7]], align=8), cp_group=group)["packed_seq_params"]
    assert params.cp_group is group
    assert params.local_cp_size == 4
    assert megatron_batch(collate([[5, 6, 7]]))["packed_seq_params"].local_cp_size is None


def test_a_group_is_refused_where_the_version_has_no_field(monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core import packed_seq_params as module

    older = dataclasses.make_dataclass("Older", [(name, Any, None) for name in ("qkv_format", "cu_seqlens_q")])
    monkeypatch.setattr(module, "PackedSeqParams", older)
    with pytest.raises(PadlessError, match="has no local_cp_size"):
        megatron_batch(collate([[5, 6, 7]]), cp_group=SimpleNamespace(size=lambda: 2))


def test_offsets_are_whole_numbers_of_32_bits_and_never_repeat_without_static_shapes() -> None:
    """Sentinels at the end of cu_seqlens are taken for segments by Transformer Engine's partitioner."""
    params = megatron_packed_seq_params(collate([[5, 6, 7], [8, 9]], align=4, pad_to_multiple=64))
    for offsets in (params.cu_seqlens_q, params.cu_seqlens_q_padded):
        assert offsets.dtype == torch.int32
        assert (offsets.diff() > 0).all()


# Limits -------------------------------------------------------------------------------------------------------------


def config(**settings: Any) -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

    return TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=2, calculate_per_token_loss=True, **settings
    )


def test_the_attention_without_packed_rows_is_refused_before_it_asserts() -> None:
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType

    groups = SimpleNamespace(tp=SimpleNamespace(size=lambda: 1, rank=lambda: 0))
    layer = DotProductAttention(config(), 1, AttnMaskType.causal, "self", pg_collection=groups)
    model = torch.nn.ModuleDict({"decoder": layer})
    query = torch.zeros(4, 1, 2, 4)
    with pytest.raises(AssertionError, match="Packed sequence is not supported"):
        layer(query, query, query, None, packed_seq_params=PackedSeqParams())
    with pytest.raises(PadlessError, match=r"decoder \(1 layers\) is Megatron's own DotProductAttention"):
        check_megatron(model, transformer_engine="2.9.0")
    with pytest.raises(PadlessError, match="transformer_impl='local'"):
        check_megatron(config(transformer_impl="local"), transformer_engine="2.9.0")


def test_a_model_that_fits_is_let_through() -> None:
    assert megatron_problems(config(), collate([[5, 6, 7], [8, 9]]), transformer_engine="2.9.0+cu12") == []


def test_without_transformer_engine_nothing_takes_packed_rows() -> None:
    assert packed_seq_params.installed_transformer_engine() is None, "the tests run where there is none"
    with pytest.raises(PadlessError, match="Transformer Engine is not installed"):
        check_megatron(config())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"calculate_per_token_loss": False}, "calculate_per_token_loss is off"),
        ({"moe_router_load_balancing_type": "seq_aux_loss"}, "takes a row for one sequence"),
        ({"moe_router_load_balancing_type": ["aux_loss", "seq_aux_loss"]}, "takes a row for one sequence"),
        ({"context_parallel_size": 2}, "collate with align=4"),
        ({"tensor_model_parallel_size": 8, "sequence_parallel": True}, "pad_to_multiple=8"),
    ],
)
def test_settings_that_change_the_objective_or_do_not_divide(settings: dict, message: str) -> None:
    said = SimpleNamespace(**{"transformer_impl": "transformer_engine", "calculate_per_token_loss": True, **settings})
    with pytest.raises(PadlessError, match=message):
        check_megatron(said, collate([[5, 6, 7], [8, 9]]), transformer_engine="2.9.0")


PADDED = {"align": 4}


def test_old_transformer_engines_cannot_read_padded_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    padded, dense = collate([[5, 6, 7], [8, 9]], **PADDED), collate([[5, 6, 7], [8, 9]])
    assert "1.10 does" in " ".join(megatron_problems(config(), padded, transformer_engine="1.9.0"))
    assert megatron_problems(config(), dense, transformer_engine="1.9.0") == []
    assert megatron_problems(config(), padded, transformer_engine="1.10.0") == []
    monkeypatch.setattr(packed_seq_params, "installed_transformer_engine", lambda: "1.9.0")
    with pytest.raises(PadlessError, match="knows no cu_seqlens_padded"):
        megatron_batch(padded)
    assert megatron_batch(dense)["packed_seq_params"].max_seqlen_q == 3
    monkeypatch.setattr(packed_seq_params, "installed_transformer_engine", lambda: "2.1.0")
    with pytest.raises(PadlessError, match=r"came with 2\.2"):
        transformer_engine_kwargs(dense)


def test_tails_under_context_parallel_need_pad_between_seqs(monkeypatch: pytest.MonkeyPatch) -> None:
    cp = config(context_parallel_size=2)
    padded = collate([[5, 6, 7], [8, 9]], **PADDED)
    assert "issue 3331" in " ".join(megatron_problems(cp, padded, transformer_engine="2.9.0")), "no field in 0.16"
    from megatron.core import packed_seq_params as module

    monkeypatch.setattr(module, "PackedSeqParams", PackedSeqParams019)
    assert megatron_problems(cp, padded, transformer_engine="2.9.0") == []
    assert "issue 3331" in " ".join(megatron_problems(cp, padded, transformer_engine="2.1.0"))


def test_state_space_layers_need_seq_idx(monkeypatch: pytest.MonkeyPatch) -> None:
    mixer = type("MambaMixer", (torch.nn.Module,), {"__module__": "megatron.core.ssm.mamba_mixer"})()
    model = torch.nn.ModuleDict({"mixer": mixer})
    assert "mixer carries its state" in " ".join(megatron_problems(model, transformer_engine="2.9.0"))
    from megatron.core import packed_seq_params as module

    monkeypatch.setattr(module, "PackedSeqParams", PackedSeqParams019)
    assert megatron_problems(model, transformer_engine="2.9.0") == []


def test_the_installed_roll_of_multi_token_prediction_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """It moves labels by logical offsets: right without padding, and across segments with it."""
    from megatron.core.transformer import multi_token_prediction
    from megatron.core.transformer.multi_token_prediction import roll_tensor

    dense, padded = collate([[5, 6, 7], [8, 9]]), collate([[5, 6, 7], [8, 9]], **PADDED)
    rolled, _ = roll_tensor(torch.as_tensor(dense.input_ids), packed_seq_params=megatron_packed_seq_params(dense))
    assert rolled.tolist() == [6, 7, 0, 9, 0]
    rolled, _ = roll_tensor(torch.as_tensor(padded.input_ids), packed_seq_params=megatron_packed_seq_params(padded))
    assert rolled.tolist() != [6, 7, 0, 0, 9, 0, 0, 0], "the fault that is refused"
    mtp = config(mtp_num_layers=1)
    assert "multi-token prediction" in " ".join(megatron_problems(mtp, padded, transformer_engine="2.9.0"))
    assert megatron_problems(mtp, dense, transformer_engine="2.9.0") == []

    def mended(tensor, packed_seq_params):
        out = torch.zeros_like(tensor)
        offsets = packed_seq_params.cu_seqlens_q_padded.tolist()
        for begin, end in itertools.pairwise(offsets):
            out[begin : end - 1] = tensor[begin + 1 : end]
        return out, out.sum()

    monkeypatch.setattr(multi_token_prediction, "roll_tensor", mended)
    assert megatron_problems(mtp, padded, transformer_engine="2.9.0") == []


def test_pipelines_that_send_offsets_as_float32_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.tensor(EXACT_FLOAT32 + 1, dtype=torch.int32).float().int() != EXACT_FLOAT32 + 1
    monkeypatch.setattr(limits_module, "EXACT_FLOAT32", 5)
    staged = SimpleNamespace(transformer_impl="transformer_engine", pipeline_model_parallel_size=2)
    assert "float32" in " ".join(megatron_problems(staged, collate([[5, 6, 7], [8, 9]]), transformer_engine="2.9.0"))


# Packing ------------------------------------------------------------------------------------------------------------


def test_their_next_fit_takes_a_row_more() -> None:
    """Lengths 5, 4, 3, 3 in rows of 8: one open row at a time needs three."""
    assert plan([5, 4, 3, 3], 8, strategy="next-fit").num_rows == 3
    assert plan([5, 4, 3, 3], 8).num_rows == 2


def test_a_sample_longer_than_everything_is_named_and_makes_no_empty_row() -> None:
    with pytest.raises(PadlessError, match="#0: 9"):
        plan([9, 2], 8)
    assert plan([9, 2], 8, oversize="drop").num_rows == 1
