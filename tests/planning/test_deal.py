"""Ids: the deal compiled and not, outlines against plans, plan files, what is measured of rows."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.errors import PadlessError, ViolationError
from padless.lengths import LengthHistogram
from padless.planning import STRATEGIES, Plan, check_plan, compiled, outline, plan, spread

LENGTHS = np.random.default_rng(0).lognormal(4, 1, 3000).astype(int).clip(1, 512)
ON_HISTOGRAMS = [name for name, strategy in STRATEGIES.items() if strategy.works_on == "histogram" and name != "nnlshp"]


@pytest.mark.parametrize("settings", [{}, {"align": 16}, {"strategy": "first-fit"}, {"window": 1000}], ids=str)
def test_numba_never_changes_a_byte(settings: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "WORTHWHILE", 0)
    plan(LENGTHS, 512, **settings).save(tmp_path / "compiled.npz")
    monkeypatch.setattr(compiled, "WORTHWHILE", 1 << 62)
    plan(LENGTHS, 512, **settings).save(tmp_path / "plain.npz")
    assert (tmp_path / "compiled.npz").read_bytes() == (tmp_path / "plain.npz").read_bytes()


def test_planning_needs_numpy_only() -> None:
    import subprocess
    import sys

    code = (
        "import sys\n"
        "for name in ('numba', 'highspy', 'pyarrow', 'torch', 'scipy'):\n"
        "    sys.modules[name] = None\n"
        "from padless.planning import plan\n"
        "print(plan([3, 4, 5], 8).num_rows)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "2\n"


@pytest.mark.parametrize("name", ON_HISTOGRAMS)
@pytest.mark.parametrize("oversize", ["truncate", "split", "drop"])
def test_an_outline_is_the_plan_without_ids(name: str, oversize: str) -> None:
    settings = {"strategy": name, "oversize": oversize, "align": 8, "max_segments": 6}
    lengths = LENGTHS[:800]
    whole = plan(lengths, 200, **settings)
    found = outline(LengthHistogram.of(lengths), 200, **settings)
    assert found.accounting == whole.accounting
    assert found.certificate == whole.certificate


def test_what_needs_samples_is_refused_for_a_histogram() -> None:
    histogram = LengthHistogram.of([5, 9])
    with pytest.raises(PadlessError, match="reads samples in their order"):
        outline(histogram, 16, strategy="next-fit")
    with pytest.raises(PadlessError, match="leave window out"):
        outline(histogram, 16, window=4)
    with pytest.raises(PadlessError, match="1 of 2 samples are longer"):
        outline(histogram, 8)


@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(1, 100), min_size=1, max_size=40), oversize=st.sampled_from(["split", "truncate"]))
def test_a_saved_plan_comes_back_and_equal_plans_are_equal_files(lengths, oversize, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("p")
    planned = plan(lengths, 32, oversize=oversize)
    planned.save(folder / "a.npz")
    assert Plan.load(folder / "a.npz") == planned
    plan(list(lengths), 32, oversize=oversize).save(folder / "b.npz")
    assert (folder / "a.npz").read_bytes() == (folder / "b.npz").read_bytes()


def test_a_plan_for_other_lengths_is_a_violation() -> None:
    planned = plan(LENGTHS, 512)
    other = LENGTHS.copy()
    other[7] += 1
    with pytest.raises(ViolationError, match="the plan does not hold"):
        check_plan(planned, other)


def test_fingerprints_follow_lengths_and_spec() -> None:
    base = plan(LENGTHS, 512)
    assert base.fingerprint == plan(LENGTHS.astype(np.uint16), 512).fingerprint
    others = [plan(LENGTHS, 512, seed=1), plan(LENGTHS, 513), plan(LENGTHS[::-1].copy(), 512)]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 4


def test_spread_tells_order_from_shuffle() -> None:
    in_order, packed = spread(plan(LENGTHS, 512, strategy="next-fit")), spread(plan(LENGTHS, 512))
    assert in_order.moved == pytest.approx(0.0)
    assert packed.moved == pytest.approx(1.0, abs=0.1)
    assert packed.segments.std != in_order.segments.std
    assert in_order.random_segments is not None
    assert in_order.segments.mean == pytest.approx(in_order.random_segments.mean, rel=0.05)
    outlined = spread(outline(LengthHistogram.of(LENGTHS), 512))
    assert outlined.segments == packed.segments
    assert outlined.targets.mean == pytest.approx(packed.targets.mean)


@pytest.mark.parametrize("name", ["auto", "optimal"])
def test_without_its_extra_the_search_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None if module == "highspy" else found(module))
    with pytest.raises(ImportError, match=rf"strategy '{name}' needs highspy: pip install 'padless\[optimal\]'"):
        plan(np.arange(129, 257), 512, strategy=name)
