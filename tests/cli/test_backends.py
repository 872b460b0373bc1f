"""`padless backends` says what is usable and why not; `padless bench attention` measures and calibrates."""

import json

import pytest

from padless.cli.main import main


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_every_backend_is_listed_with_a_reason_or_as_usable(capsys):
    found = json.loads(output(capsys, "backends", "--json"))
    assert {entry["backend"] for entry in found} >= {"flash-attn-2", "torch-varlen", "segmented", "dense", "reference"}
    assert all(entry["usable"] == (entry["why not"] is None) for entry in found)
    by_name = {entry["backend"]: entry for entry in found}
    assert by_name["segmented"]["usable"]
    assert by_name["segmented"]["sinks"]
    assert not by_name["torch-varlen"]["dropout"]


def test_the_table_is_for_reading(capsys):
    shown = output(capsys, "backends")
    assert "segmented           usable" in shown
    assert "gradients on cuda only" in shown


@pytest.mark.slow
def test_bench_attention_measures_every_case(capsys):
    arguments = ["--tokens", "256", "--heads", "1", "--head-size", "8", "--repeats", "1", "--threads", "1"]
    results = json.loads(output(capsys, "bench", "attention", *arguments, "--json"))
    assert [result["case"] for result in results] == ["about 16", "about 128", "log-normal", "about 1024"]
    assert all(result[way] > 0 for result in results for way in ("padless", "padded", "dense"))
    assert "how many times as long as padless" in output(capsys, "bench", "attention", *arguments)


@pytest.mark.slow
def test_calibration_is_saved_where_the_selector_looks(capsys, monkeypatch, tmp_path):
    from padless.attention import cost

    monkeypatch.setenv("PADLESS_ATTENTION_COST", str(tmp_path / "cost.json"))
    cost.machine.cache_clear()
    arguments = ["--heads", "1", "--head-size", "8", "--repeats", "1", "--threads", "1"]
    fitted = json.loads(output(capsys, "bench", "attention", "--calibrate", *arguments, "--json"))
    assert set(fitted) == {"segmented", "dense"}
    saved = cost.machine("cpu")
    assert saved["segmented"].token_us == pytest.approx(fitted["segmented"]["token_us"])
    assert all(number >= 0 for numbers in fitted.values() for number in numbers.values())
    cost.machine.cache_clear()


def test_an_unknown_measurement_is_wrong_use(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "nothing"])
    assert ended.value.code == 2
    assert "nothing" in capsys.readouterr().err
