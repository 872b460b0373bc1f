"""Faults that people reported in public, each reproduced by a small input of our own and named by the audit.

`docs/audit.md` lists them.
"""

from typing import Any

import pytest
import torch
from torch.nn import functional

from padless.auditing import AuditReport, audit
from padless.frameworks.tiny_models import tiny_model
from padless.frameworks.transformers import PackedCollator

from .toys import Collator, Design, Toy

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore")]
COUNT = "num_items_in_batch"


def shipped(name: str, *, cache: bool = False) -> torch.nn.Module:
    model = tiny_model(name, dtype=torch.float32)
    if not cache:
        model.config.use_cache = model.config.get_text_config().use_cache = False
    return model


def with_entries(**entries: Any):
    """PackedCollator with some entries made from its own."""

    def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
        inputs = PackedCollator()(samples)
        return inputs | {name: make(inputs) for name, make in entries.items()}

    return collate


def mechanism(report: AuditReport, check: str) -> str:
    return report[check].mechanism


def test_transformers_46634_a_mask_of_ones_switches_detection_off() -> None:
    collate = with_entries(attention_mask=lambda inputs: torch.ones_like(inputs["input_ids"]))
    report = audit(shipped("llama"), collate, count_argument=COUNT)
    assert mechanism(report, "isolation") == "mask-disables-detection"
    assert "2-D attention_mask" in report["traps"].finding


def test_transformers_39997_gpt_oss_never_looks_at_positions() -> None:
    report = audit(shipped("gpt_oss"), PackedCollator(), count_argument=COUNT, checks=["isolation"])
    assert mechanism(report, "isolation") == "no-segment-mask"
    assert report["isolation"].where == "model.layers.0.self_attn"


def test_transformers_default_cache_switches_detection_off() -> None:
    report = audit(shipped("llama", cache=True), PackedCollator(), count_argument=COUNT)
    assert mechanism(report, "isolation") == "cache-disables-detection"


def test_transformers_40194_three_position_axes_hide_the_boundaries_of_qwen_vl() -> None:
    collate = with_entries(
        position_ids=lambda inputs: (
            inputs["position_ids"].reshape(-1, *inputs["input_ids"].shape)[-1:].expand(3, -1, -1)
        )
    )
    report = audit(shipped("qwen2_vl"), collate, count_argument=COUNT, checks=["traps", "isolation"])
    assert report["isolation"].verdict == "violated"
    assert "3 axes" in report["traps"].finding


def test_mamba_reports_state_is_carried_over() -> None:
    report = audit(shipped("mamba2"), PackedCollator(), lengths=(5, 1, 9), checks=["isolation", "state"])
    assert mechanism(report, "state") in ("state-carried-over", "convolution-crosses-boundary")


def test_gradient_accumulation_without_the_global_count_is_a_mean_of_means() -> None:
    """The fault of transformers' gradient accumulation in 2024, and of Megatron-LM#7452 with local token counts."""
    model = shipped("llama")
    assert mechanism(audit(model, PackedCollator(), checks=["denominator"]), "denominator") == "mean-of-means"
    told = audit(model, PackedCollator(), checks=["denominator"], count_argument=COUNT)
    assert told["denominator"].verdict == "proven"


def preshifted(outputs: Any, inputs: dict[str, torch.Tensor], num_targets: int) -> torch.Tensor:
    """Megatron's loss: labels are shifted in the data set."""
    logits, labels = outputs.logits[0], inputs["shifted"][0]
    return functional.cross_entropy(logits, labels, reduction="sum", ignore_index=-100) / num_targets


def test_megatron_sft_labels_cross_conversations() -> None:
    """Megatron-LM's SFTDataset shifts over the whole pack, so A's last token is trained on B's first."""

    def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
        inputs = Collator()(samples)
        inputs["shifted"] = torch.cat([inputs["input_ids"][:, 1:], torch.full((1, 1), -100)], dim=1)
        return inputs

    report = audit(
        Toy(Design(), 0), collate, preshifted, call=lambda m, i: m(i["input_ids"], i["position_ids"], i["segment_ids"])
    )
    assert mechanism(report, "targets") == "cross-boundary-label"


def test_megatron_sft_pad_equal_to_eos_loses_every_eos() -> None:
    report = audit(Toy(Design(), 0), Collator(fault="masks-by-pad-id"), count_argument="num_items")
    assert mechanism(report, "targets") == "lost-eod"


def test_seqpacker_shifts_labels_that_the_model_shifts_again() -> None:
    def preshift(inputs: dict[str, Any]) -> torch.Tensor:
        return torch.cat([inputs["labels"][:, 1:], torch.full((1, 1), -100)], dim=1)

    collate = with_entries(labels=preshift, attention_mask=lambda inputs: torch.ones_like(inputs["input_ids"]))
    report = audit(shipped("llama"), collate, count_argument=COUNT)
    assert mechanism(report, "targets") == "double-shift"
    assert mechanism(report, "isolation") == "mask-disables-detection"


def test_megatron_1984_router_statistics_count_padding() -> None:
    design = Design(fault="aux-padding", mixers=("attention", "experts"))
    report = audit(Toy(design, 0), Collator(), count_argument="num_items")
    assert mechanism(report, "padding") == "aux-loss-counts-padding"


def test_two_rows_without_boundaries_are_a_trap_for_flash_kernels() -> None:
    """Transformers' flash path infers boundaries from positions for one row only; run here on the mask path."""

    def two_rows(samples: list[dict[str, Any]]) -> dict[str, Any]:
        if len(samples) < 4:
            return Collator(emit=("position_ids", "labels"))(samples)
        length = max(sum(len(s["input_ids"]) for s in half) for half in (samples[:2], samples[2:]))
        rows = [Collator(emit=("position_ids", "labels"))(half, length) for half in (samples[:2], samples[2:])]
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}

    report = audit(shipped("llama"), two_rows, checks=["traps", "isolation"])
    assert "2 rows without explicit boundaries" in report["traps"].finding
    assert report["isolation"].verdict == "proven"
