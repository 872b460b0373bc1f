"""What cannot be decided is said to be undecided, with the reason, and never proven by accident."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from padless.auditing import AuditReport, audit
from padless.errors import PadlessError, ViolationError

from .toys import WIDTH, Bare, Collator, Design, Toy


def mean_before(x: torch.Tensor) -> torch.Tensor:
    """Each position's running mean over the row: tokens see each other, segments too."""
    return x.cumsum(1) / torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]


def bare(forward) -> AuditReport:
    return audit(Bare(forward), Collator())


def test_nan_outputs_prove_nothing() -> None:
    report = bare(lambda m, ids: m.head(m.embed(ids)) * float("nan"))
    assert report["isolation"].verdict == "undecided"
    assert "not finite" in report["isolation"].finding
    assert report["parity"].verdict == "undecided"
    assert report.exit_code == 3


def test_a_model_that_ignores_its_input_is_dead() -> None:
    report = bare(lambda m, ids: m.head(torch.ones(*ids.shape, WIDTH)))
    assert report["isolation"].verdict == "undecided"
    assert "do not react" in report["isolation"].finding


def test_a_model_whose_tokens_never_meet_has_nothing_to_isolate() -> None:
    report = bare(lambda m, ids: m.head(m.embed(ids)))
    assert report["isolation"].verdict == "undecided"
    assert "nothing to isolate" in report["isolation"].finding


def test_a_model_that_raises_is_one_line() -> None:
    def forward(m, ids):
        raise RuntimeError("kernel not compiled for this shape\nstack of 300 lines")

    report = bare(forward)
    assert {r.verdict for r in report if r.name != "traps"} == {"undecided"}
    assert report["isolation"].finding == "the model fails with RuntimeError: kernel not compiled for this shape"
    assert report.exit_code == 3


def test_detached_logits_have_no_gradients() -> None:
    report = bare(lambda m, ids: m.head(mean_before(m.embed(ids))).detach())
    assert report["gradients"].verdict == "undecided"


def test_dropout_that_stays_on_is_no_parity() -> None:
    report = bare(lambda m, ids: m.head(functional.dropout(mean_before(m.embed(ids)), 0.5, training=True)))
    assert report["parity"].verdict == "undecided"
    assert "dropout" in report["parity"].finding


def test_dropout_that_evaluation_turns_off_does_no_harm() -> None:
    model = Toy(Design(), 0)
    model.layers[0].out = nn.Sequential(model.layers[0].out, nn.Dropout(0.5))
    assert audit(model, Collator(), count_argument="num_items").exit_code == 0


def test_a_zero_head_hides_no_leak() -> None:
    model = Toy(Design(fault="no-mask"), 0)
    nn.init.zeros_(model.head.weight)
    report = audit(model, Collator(), count_argument="num_items")
    assert report["isolation"].verdict == "violated"
    assert "head.weight" in report.settings["zero_parameters_filled_while_auditing"]
    assert not model.head.weight.any(), "the zeros are put back"


def test_a_zero_output_projection_hides_no_leak() -> None:
    model = Toy(Design(fault="no-mask"), 0)
    for layer in model.layers:
        nn.init.zeros_(layer.out.weight)
    assert audit(model, Collator(), count_argument="num_items")["isolation"].verdict == "violated"


def test_without_a_loss_what_needs_one_does_not_apply() -> None:
    report = audit(Toy(Design(), 0), Collator(emit=("position_ids", "segment_ids")))
    assert report["targets"].verdict == report["denominator"].verdict == "not-applicable"
    assert report["parity"].verdict == "proven"


def test_a_loss_without_graph_is_undecided() -> None:
    report = audit(Toy(Design(), 0), Collator(), lambda outputs, inputs: outputs.loss.detach())
    assert report["targets"].verdict == "undecided"
    assert report["denominator"].verdict == "undecided"


def test_a_collator_that_changes_tokens_is_undecided() -> None:
    def collate(samples):
        inputs = Collator()(samples)
        inputs["input_ids"] = inputs["input_ids"].flip(1)
        return inputs

    report = audit(Toy(Design(), 0), collate)
    assert report["isolation"].verdict == "undecided"
    assert "not in the collated input_ids" in report["isolation"].finding


def test_undecided_is_not_clean() -> None:
    with pytest.raises(ViolationError, match="nothing to isolate"):
        bare(lambda m, ids: m.head(m.embed(ids))).assert_clean()


def test_wrong_use_raises() -> None:
    with pytest.raises(PadlessError, match="unknown checks isolatoin"):
        audit(Toy(Design(), 0), checks=["isolatoin"])
    with pytest.raises(PadlessError, match="needs an nn"):
        audit(lambda ids: ids)
    with pytest.raises(PadlessError, match="3 tokens and 2 labels"):
        audit(Toy(Design(), 0), samples=[{"input_ids": [5, 6, 7], "labels": [5, 6]}] * 2)
