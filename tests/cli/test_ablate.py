"""`padless ablate` and `padless plan --prune` as a user runs them."""

import json
from pathlib import Path

import pytest

from padless.measure.vla_cost import PI05_COST

MODULE = """
import numpy as np
from padless.measure.ablation import Ablatable
from padless.measure.ablation_slots import Slot


def made():
    noise = np.random.default_rng(0).normal(size=200)

    def loss(change):
        harm = {"base": 0.3, "wrist": 0.0 if change.how == "swap" else 0.2, None: 0.0}.get(change.slot, 0.0)
        return 1 + 0.01 * noise + harm

    slots = [
        Slot(name="base", kind="real", tokens=256, compute=0.28),
        Slot(name="wrist", kind="constant", tokens=256),
        Slot(name="right", kind="masked everywhere", tokens=256, present=0.0),
    ]
    return Ablatable(slots=slots, loss=loss, episodes=np.repeat(np.arange(40), 5))


def leaking():
    subject = made()
    loss = lambda change: subject.loss(change) + (change.slot is not None)
    return Ablatable(slots=subject.slots[2:], loss=loss, episodes=subject.episodes)


def other():
    return 1


def failing():
    raise RuntimeError("no checkpoint")
"""


@pytest.fixture
def subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "ablated_policy.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "ablated_policy"


def test_json_holds_slots_verdicts_and_intervals(padless, subject) -> None:
    code, out, err = padless("ablate", f"{subject}:made", "--json")
    assert code == 0, err
    found = json.loads(out)
    verdicts = {each["slot"]["name"]: each["verdict"] for each in found["results"]}
    assert verdicts == {"base": "load-bearing", "wrist": "candidate", "right": "lossless"}
    assert found["results"][0]["effects"][0]["change"]["low"] > 0.25
    assert (found["episodes"], found["samples"]) == (40, 200)


def test_the_table_says_what_is_what_and_why(padless, subject) -> None:
    code, out, err = padless("ablate", f"{subject}:made", "--success", "0.984", "--drop", "0.002")
    assert code == 0, err
    for text in ("load-bearing", "candidate", "lossless", "28.0%", "may need it", "65,581", "no change"):
        assert text in out
    assert padless("ablate", f"{subject}:made", "--quiet")[1] == ""


def test_a_masked_slot_that_matters_is_a_violation(padless, subject) -> None:
    code, _, err = padless("ablate", f"{subject}:leaking")
    assert code == 1
    assert "attends to masked tokens" in err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "give SUBJECT"),
        (["--drop", "0.1"], "give SUBJECT"),
        (["ablated_policy:other"], "expected a padless.measure.ablation.Ablatable"),
        (["ablated_policy:failing"], "no checkpoint"),
        (["ablated_policy:missing"], "expected module:function"),
        (["ablated_policy:made", "--drop", "0.1"], "--drop needs --success"),
        (["ablated_policy:made", "--tolerance", "0"], "must be above 0"),
        (["--success", "98.4"], "98.4 % is 0.984"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(padless, subject, args, says) -> None:
    code, _, err = padless("ablate", *args)
    assert code == 2
    assert says in err
    assert "Traceback" not in err


def test_episodes_alone(padless) -> None:
    [found] = json.loads(padless("ablate", "--success", "0.984", "--json")[1])["episodes"]
    assert (found["drop"], found["episodes"]) == (0.01, 3227)


# padless plan --views --prune -----------------------------------------------------------------------------------------


@pytest.fixture
def views(tmp_path: Path) -> Path:
    path = tmp_path / "views.jsonl"
    camera = {"height": 480, "width": 640}
    record = {"text": 40, "media": [{"name": "base", **camera}, {"name": "wrist", **camera}]}
    path.write_text("".join(json.dumps(record) + "\n" for _ in range(20)))
    return path


def test_a_pruned_plan_shows_before_and_after_and_carries_its_rules(padless, views, tmp_path) -> None:
    from padless import Plan

    saved = tmp_path / "plan.npz"
    code, out, err = padless(
        "plan", str(views), "-c", "1200", "--views", "siglip-224", "--prune", "drop:wrist", "-o", saved
    )
    assert code == 0, err
    for text in ("tokens of wrist", "5,120", "100.0%", "rows", "padless ablate"):
        assert text in out
    assert Plan.load(saved).pruning == ("drop:wrist",)
    found = json.loads(
        padless("plan", str(views), "-c", "1200", "--views", "siglip-224", "--prune", "drop:wrist", "--json")[1]
    )["pruning"]
    assert found["real tokens"] == {"before": 20 * 552, "after": 20 * 296}
    assert found["rows"] == {"before": 10, "after": 5}
    flops = found["GFLOP forward, sizes of pi0.5"]
    one = PI05_COST.flops(views=1, prompt=40, suffix=0).total / 1e9
    two = PI05_COST.flops(views=2, prompt=40, suffix=0).total / 1e9
    assert flops == pytest.approx({"before": 20 * two, "after": 20 * one})


def test_views_without_rules_are_a_plain_plan(padless, views) -> None:
    found = json.loads(padless("plan", str(views), "-c", "1200", "--views", "siglip-224", "--json")[1])
    assert found["real_tokens"] == 20 * 552
    assert "pruning" not in found


def test_rules_need_views(padless, views) -> None:
    code, _, err = padless("plan", str(views), "-c", "1200", "--prune", "drop:wrist")
    assert (code, "needs --views" in err) == (2, True)
