"""Reports: exit codes, text, JSON, the page; and that an audit leaves no trace in the model."""

import json

import pytest
import torch

from padless.auditing import CHECKS, MECHANISMS, AuditReport, CheckResult, audit
from padless.auditing.explain import EXPLANATIONS
from padless.auditing.page import render_page
from padless.errors import PadlessError, ViolationError

from .toys import Collator, Design, Toy


def result(verdict: str, mechanism: str = "") -> CheckResult:
    return CheckResult(name="isolation", verdict=verdict, finding="seen", mechanism=mechanism)


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["proven"], 0),
        (["proven", "not-applicable"], 0),
        (["not-applicable"], 3),
        ([], 3),
        (["proven", "undecided"], 3),
        (["proven", "undecided", "violated"], 1),
    ],
)
def test_exit_codes(verdicts: list[str], code: int) -> None:
    made = [result(v, "no-segment-mask" if v == "violated" else "") for v in verdicts]
    assert AuditReport(subject="m", results=tuple(made)).exit_code == code


def test_a_violation_names_a_known_mechanism() -> None:
    for verdict, mechanism in (("violated", ""), ("proven", "no-segment-mask"), ("violated", "gremlins")):
        with pytest.raises(PadlessError):
            result(verdict, mechanism)


def test_every_check_is_explained_and_every_mechanism_has_a_remedy() -> None:
    assert list(EXPLANATIONS) == list(CHECKS)
    assert all(m.meaning.endswith(".") and m.remedy.endswith(".") for m in MECHANISMS.values())


@pytest.fixture(scope="module")
def leaky() -> AuditReport:
    return audit(Toy(Design(fault="no-mask"), 0), Collator(), count_argument="num_items", name="<toy>")


def test_assert_clean_says_what_and_what_to_do(leaky: AuditReport) -> None:
    with pytest.raises(ViolationError, match=r"isolation: violated: changing segment .*cu_seqlens"):
        leaky.assert_clean()


def test_json_round_trips(leaky: AuditReport) -> None:
    picture = json.loads(leaky.to_json())
    assert picture["exit_code"] == 1
    assert {r["name"]: r["verdict"] for r in picture["results"]} == {r.name: r.verdict for r in leaky}


def test_the_page_stands_alone(leaky: AuditReport) -> None:
    page = render_page(leaky)
    assert "no-segment-mask" in page
    assert "&lt;toy&gt;" in page
    for outside in ("http:", "https:", "<script", "<link", "src="):
        assert outside not in page


def test_checks_can_be_chosen_and_progress_is_told() -> None:
    told: list[tuple[str, bool]] = []
    report = audit(
        Toy(Design(), 0),
        Collator(),
        checks=["targets", "isolation"],
        progress=lambda name, found: told.append((name, found is None)),
    )
    assert [r.name for r in report] == ["isolation", "targets"]
    assert told == [("isolation", True), ("isolation", False), ("targets", True), ("targets", False)]


def test_the_model_is_left_as_it_was() -> None:
    model = Toy(Design(mixers=("attention", "norm"), fault="batch-norm"), 0).train()
    model.layers[0].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flags = [m.training for m in model.modules()]
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    audit(model, Collator(), count_argument="num_items")
    assert torch.equal(torch.rand(3), expected), "the random state is put back"
    assert [m.training for m in model.modules()] == flags
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_the_same_seed_gives_the_same_report() -> None:
    first, second = (audit(Toy(Design(), 0), Collator(), count_argument="num_items", seed=3) for _ in range(2))
    assert [(r.verdict, r.measured) for r in first] == [(r.verdict, r.measured) for r in second]
