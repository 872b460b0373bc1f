"""Known instances: the exact numbers of published algorithms, and how far column generation gets."""

import numpy as np
import pytest

from padless.lengths import LengthHistogram, lower_bound
from padless.planning import check_plan, outline, plan

# Rows on the Wikipedia histogram by most segments per row, from the published code of Krell et al. 2021.
SPFHP = {1: 16_279_552, 2: 10_101_683, 3: 9_094_695, 4: 8_658_996, 8: 8_224_673, 12: 8_166_708, None: 8_166_708}
LPFHP = {1: 16_279_552, 2: 10_099_081, 3: 9_090_154, 4: 8_657_119, 8: 8_207_569, 12: 8_149_619, None: 8_138_483}


@pytest.mark.parametrize(("name", "rows"), [("spfhp", SPFHP), ("lpfhp", LPFHP), ("best-fit-decreasing", LPFHP)])
def test_published_rows(name: str, rows: dict, wikipedia: LengthHistogram) -> None:
    found = {depth: outline(wikipedia, 512, strategy=name, max_segments=depth).certificate.rows for depth in rows}
    assert found == rows


def test_published_efficiencies(wikipedia: LengthHistogram) -> None:
    efficiency = {
        name: f"{outline(wikipedia, 512, strategy=name).accounting.efficiency:.3%}"
        for name in ("none", "spfhp", "lpfhp")
    }
    assert efficiency == {"none": "49.967%", "spfhp": "99.604%", "lpfhp": "99.949%"}


@pytest.mark.slow
def test_nnlshp_reaches_the_published_rows(wikipedia: LengthHistogram) -> None:
    found = outline(wikipedia, 512, strategy="nnlshp", max_segments=3)
    assert found.certificate.rows <= 8_155_100
    assert found.accounting.segments_per_row_max <= 3


def test_next_fit_is_as_wasteful_as_published(wikipedia: LengthHistogram) -> None:
    share = wikipedia.counts / wikipedia.samples
    drawn = np.random.default_rng(0).choice(wikipedia.lengths, size=200_000, p=share)
    assert plan(drawn, 512, strategy="next-fit").accounting.efficiency == pytest.approx(0.782, abs=0.002)


@pytest.mark.parametrize(
    ("depth", "most_rows", "bound"),
    [
        (None, 8_135_740, 8_135_727),
        (2, 10_099_081, 10_099_081),
        pytest.param(3, 8_143_840, 8_143_829, marks=pytest.mark.slow),
        pytest.param(4, 8_135_740, 8_135_727, marks=pytest.mark.slow),
    ],
)
def test_wikipedia_is_packed_to_within_a_hundredth_of_a_thousandth(
    depth: int | None, most_rows: int, bound: int, wikipedia: LengthHistogram
) -> None:
    found = outline(wikipedia, 512, strategy="optimal", max_segments=depth)
    assert found.certificate.rows <= most_rows
    assert found.certificate.lower_bound == bound
    assert found.certificate.gap < 1e-5
    placed, counts = found.patterns.totals()
    assert np.array_equal(placed, wikipedia.lengths)
    assert np.array_equal(counts, wikipedia.counts)
    assert int(found.patterns.used.max()) <= 512


def test_squad_is_packed_optimally(squad: LengthHistogram) -> None:
    certificate = outline(squad, 384, strategy="optimal").certificate
    assert (certificate.rows, certificate.lower_bound, certificate.bound_by) == (40_195, 40_195, "LP")
    assert lower_bound(squad, 384).rows == 39_775
    assert -(-squad.tokens // 384) == 39_713


def test_school_problems(gsm8k: np.ndarray) -> None:
    best = plan(gsm8k, 512)
    found = plan(gsm8k, 512, strategy="optimal")
    assert best.num_rows == 2_350
    assert found.num_rows <= 2_302
    assert found.certificate.lower_bound >= 2_301
    check_plan(found, gsm8k)
    assert plan(gsm8k, 512, strategy="auto") != best
    assert plan(gsm8k, 512, strategy="auto").num_rows == found.num_rows


@pytest.mark.slow
def test_chat_requests(azure_chat: np.ndarray) -> None:
    found = plan(azure_chat, 4096, strategy="optimal", oversize="truncate")
    assert found.num_rows <= 6_394
    assert found.certificate.lower_bound >= 6_390
    check_plan(found, azure_chat)


@pytest.mark.slow
@pytest.mark.parametrize(("low", "high", "most_gap", "most_rows"), [(50, 800, 1e-4, None), (1025, 2048, 1e-3, 389_230)])
def test_hard_random_lengths(low: int, high: int, most_gap: float, most_rows: int | None) -> None:
    lengths = np.random.default_rng(0).integers(low, high + 1, 1_000_000)
    certificate = outline(LengthHistogram.of(lengths), 4096, strategy="optimal").certificate
    assert certificate.gap <= most_gap
    if most_rows is not None:
        assert certificate.rows <= most_rows


def test_a_million_distinct_spaces_take_seconds() -> None:
    rng = np.random.default_rng(0)
    distinct = np.sort(rng.choice(np.arange(1, 1 << 20), size=100_000, replace=False))
    histogram = LengthHistogram(lengths=distinct, counts=rng.integers(1, 20, distinct.size))
    certificate = outline(histogram, 1 << 20).certificate
    assert certificate.gap < 0.01


def test_ten_billion_samples_without_an_id() -> None:
    lengths = np.arange(1, 8193)
    density = np.exp(-((np.log(lengths) - 6) ** 2) / 2) / lengths
    counts = np.maximum(1, (density / density.sum() * 10**10).astype(np.int64))
    found = outline(LengthHistogram(lengths=lengths, counts=counts), 8192)
    assert found.accounting.samples > 9.99e9
    assert found.certificate.gap < 1e-4
    placed, times = found.patterns.totals()
    assert np.array_equal(placed, lengths)
    assert np.array_equal(times, counts)
