"""The page as text: whole, small, the same every time, and with nothing in it that data put there as markup."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from padless import TokenStore
from padless.errors import PadlessError
from padless.report import Report, make_report
from padless.report.given import Arm, Audit, Bench, Check, Regime, Saving
from padless.report.page import LARGEST

HOSTILE = "</script></style></title></svg><script>alert(1)</script><img src=x onerror=alert(1)>\"'&|`*\n{{ 7 * 7 }}"
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Elements(HTMLParser):
    """Every element with its attributes, and whether they close in the order they opened."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def everything(said: str) -> tuple[Bench, Audit]:
    """A benchmark and an audit with every field there is, each text of them `said`."""
    bench = Bench(
        arms=(
            Arm(name=said, seconds=2.0, real_tokens_per_second=100.0, peak_memory=1e9, note=said),
            Arm(name="packed", real_tokens_per_second=900.0),
        ),
        savings=(Saving(padding=0.03, time_saved=0.02), Saving(padding=0.9, time_saved=0.89)),
        regime=Regime(name=said, constant=1.0, linear=2e-5, quadratic=3e-9, error=0.05, advice=(said, said)),
        ideal_ratio=10.0,
        machine=said,
        date=said,
        model=said,
        data=said,
        command=said,
    )
    check = Check(name=said, verdict=said, finding=said, measured=1.0, mechanism=said, where=said, remedy=said)
    return bench, Audit(subject=said, results=(check, Check(name="a", verdict="violated", finding=said)))


def full(store: TokenStore, said: str) -> Report:
    bench, audit = everything(said)
    bare = make_report(store)
    return Report(facts=bare.facts, row=bare.row, balance=bare.balance, bench=bench, audit=audit)


@pytest.fixture
def hostile(make_store: Callable[..., TokenStore]) -> Report:
    store = make_store([{"prompt": HOSTILE, "completion": HOSTILE}] * 9, capacity=512)
    source = msgspec.structs.replace(store.manifest.sources[0], name=HOSTILE)
    store.manifest = msgspec.structs.replace(store.manifest, sources=(source,))
    return full(store, HOSTILE)


def test_hostile_texts_add_no_element(hostile: Report) -> None:
    elements = Elements(hostile.html())
    assert elements.open == []
    names = [name for name, _ in elements.found]
    assert [names.count(name) for name in ("script", "style", "main", "h1")] == [1, 1, 1, 1]
    assert not {"img", "iframe", "object", "embed", "link", "base"} & set(names)
    assert not [key for _, attributes in elements.found for key in attributes if key.startswith("on")]
    assert "alert(1)</script>" not in hostile.html()
    assert "{{ 7 * 7 }}" in hostile.html(), "a template in the data is not a template"


def test_hostile_texts_stay_in_their_cell_of_a_markdown_table(hostile: Report) -> None:
    lines = hostile.markdown().splitlines()
    tables = [line for line in lines if line.startswith("|")]
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in tables}
    assert widths <= {4, 8}, "as many cells in a line as in its header"
    assert not re.search(r"(?<!\\)<", hostile.markdown())


def test_the_page_asks_for_nothing(store: TokenStore) -> None:
    page = full(store, "said").html()
    for _, attributes in Elements(page).found:
        assert not {"src", "srcset", "data", "action", "poster"} & set(attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp|import\(", page)
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) == {"http://www.w3.org/2000/svg"}
    assert "default-src &#39;none&#39;" in page


def test_ids_are_unique_and_what_points_at_them_exists(store: TokenStore) -> None:
    elements = Elements(full(store, "said").html()).found
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in elements:
        for name in ("href", "aria-labelledby", "aria-describedby", "for"):
            for pointed in (attributes.get(name) or "").split():
                assert pointed.removeprefix("#") in ids


def test_equal_stores_give_equal_pages_wherever_they_lie(store: TokenStore, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(store.path, tmp_path / "elsewhere" / "store")
    again = TokenStore(tmp_path / "elsewhere" / "store")
    one, other = full(store, "said"), full(again, "said")
    assert one.html() == other.html()
    assert one.markdown() == other.markdown()
    assert [c.standalone() for c in one.charts.values()] == [c.standalone() for c in other.charts.values()]


def test_numbers_of_the_store_are_on_the_page(store: TokenStore) -> None:
    page = make_report(store).html()
    made = store.plan()
    for value in (
        f"{made.accounting.tail_padding:,}",
        f"{made.accounting.alignment_padding:,}",
        str(made.certificate),
        store.fingerprint,
        made.fingerprint,
        store.manifest.conventions.loss,
        store.manifest.sources[0].sha256,
        f"{store.manifest.counts.targets:,}",
    ):
        assert value in page
    assert "Nothing was lost" in page
    for absent in ('id="speed"', 'id="audit"'):
        assert absent not in page


@pytest.mark.parametrize("part", ["bench", "audit"])
def test_sections_stand_alone(store: TokenStore, part: str) -> None:
    whole = full(store, "said")
    fields: dict[str, Any] = {"bench": None, "audit": None, part: getattr(whole, part)}
    page = Report(facts=whole.facts, row=whole.row, balance=None, **fields).html()
    assert ('id="speed"' in page) == (part == "bench")
    assert ('id="audit"' in page) == (part == "audit")
    assert "nothing to deal" in page


@pytest.mark.parametrize("bench", [Bench(savings=(Saving(padding=0.5, time_saved=0.4),)), Bench(arms=(Arm(name="a"),))])
def test_a_benchmark_may_hold_little(store: TokenStore, bench: Bench) -> None:
    bare = make_report(store)
    report = Report(facts=bare.facts, row=bare.row, balance=bare.balance, bench=bench, audit=None)
    assert 'id="speed"' in report.html()
    assert "packed" in report.markdown()


def test_a_page_of_very_much_is_small_or_refused(make_store: Callable[..., TokenStore]) -> None:
    records = [{"prompt": "&" * 900, "completion": "<" * (n % 90 + 1)} for n in range(400)]
    store = make_store(records, capacity=65536)
    many = tuple(msgspec.structs.replace(store.manifest.sources[0], name=f"s{n}") for n in range(5000))
    store.manifest = msgspec.structs.replace(store.manifest, sources=many)
    bare = make_report(store)
    checks = tuple(Check(name="c", verdict="proven", finding="&" * 10_000) for _ in range(500))
    report = Report(
        facts=bare.facts, row=bare.row, balance=bare.balance, bench=None, audit=Audit(subject="m", results=checks)
    )
    page = report.html()
    assert len(page.encode()) < LARGEST == 1_000_000
    assert "The first 20 of 5,000 sources" in page
    assert "The first 60 of 500 checks" in page
    arms = tuple(Arm(name="&" * 500, note="&" * 500, seconds=1.0) for _ in range(500))
    with pytest.raises(PadlessError, match="more than the 1,000,000 that it may have"):
        Report(facts=bare.facts, row=bare.row, balance=None, bench=Bench(arms=arms), audit=None).html()
