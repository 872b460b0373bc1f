"""The page in a real Chromium: clicks, keys, values read back, held against the masks that kernels get."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from padless import Batch, PackedDataset, Rule, TokenStore, collate
from padless.masks import dense_mask
from padless.report import make_report

pytestmark = pytest.mark.xdist_group("chromium")  # one browser for all of these

WINDOW = 5
RULES = {
    "causal": Rule(),
    "prefix": Rule(kind="prefix-lm"),
    "window": Rule(window=(WINDOW - 1, None)),
}
SEEN = """Array.from(document.querySelectorAll("#tokens .token"), (query) => {
  query.click();
  const seen = [...document.querySelectorAll("#tokens .token")].filter(
    (key) => key.matches(".seen, .leak"));
  return {
    slot: Number(query.dataset.slot),
    seen: seen.map((key) => Number(key.dataset.slot)),
    foreign: document.querySelectorAll("#tokens .token.leak").length,
    count: document.getElementById("r-count").textContent,
    leak: document.getElementById("r-leak").hidden ? "" : document.getElementById("r-leak").textContent,
  };
})"""


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Callable[..., Path]:
    """Write the report of a store and open it."""

    def show(store: TokenStore, *, row: int | None = None, **how: Any) -> Path:
        page = tmp_path / "report.html"
        page.write_text(make_report(store, row=row).html())
        browser.open(page, **how)
        return page

    return show


def expected(batch: Batch, rule: Rule, *, isolated: bool) -> np.ndarray:
    """bool[slots, slots] by `collate` and `dense_mask`; concatenated: all real tokens are one sample."""
    real = np.flatnonzero(batch.segment_ids)
    ids = batch.unpack(batch.input_ids)
    prompts = [int((labels >= 0).argmax()) if (labels >= 0).any() else 0 for labels in batch.unpack(batch.labels)]
    if not isolated:
        ids, prompts = [np.concatenate(ids)], prompts[:1]
    samples = [{"input_ids": tokens, "prefix_length": prompt} for tokens, prompt in zip(ids, prompts, strict=True)]
    if rule.kind != "prefix-lm":
        samples = [{"input_ids": sample["input_ids"]} for sample in samples]
    mask = np.zeros((batch.num_slots, batch.num_slots), bool)
    mask[np.ix_(real, real)] = dense_mask(collate(samples, rule=rule))
    return mask


def number(text: str) -> int:
    return int(text.split(maxsplit=1)[0].replace(",", ""))


@pytest.mark.parametrize("scope", ["isolated", "concatenated"])
@pytest.mark.parametrize("rule", list(RULES))
def test_what_a_token_may_see_is_what_the_mask_says(
    browser: Any, show: Callable[..., Path], store: TokenStore, scope: str, rule: str
) -> None:
    show(store)
    shown = make_report(store).row
    batch = PackedDataset(store, pad_rows=True)[shown.number]
    browser.click(f"#switches [value={scope}]")
    browser.click(f"#switches [value={rule}]")
    browser.value(
        f"(() => {{ const w = document.getElementById('window'); w.value = {WINDOW}; "
        f"if ('{rule}' === 'window') w.dispatchEvent(new Event('input', {{bubbles: true}})) }})()"
    )
    mask = expected(batch, RULES[rule], isolated=scope == "isolated")
    found = browser.value(SEEN)
    shown_slots = [token["slot"] for token in found]
    assert len(shown_slots) > 30
    assert set(batch.segment_ids[shown_slots]) >= {0, 1, 2, 3}, "padding and three segments are among the tokens"
    for token in found:
        allowed = np.flatnonzero(mask[token["slot"]])
        same = batch.segment_ids[allowed] == batch.segment_ids[token["slot"]]
        assert token["seen"] == [slot for slot in allowed.tolist() if slot in shown_slots], token
        assert token["foreign"] == int((~same & np.isin(allowed, shown_slots)).sum())
        assert number(token["count"]) == len(allowed)
        assert (number(token["leak"]) if token["leak"] else 0) == int((~same).sum())


def test_counts_hold_for_tokens_that_are_not_shown(
    browser: Any, show: Callable[..., Path], make_store: Callable[..., TokenStore]
) -> None:
    store = make_store([{"prompt": "p" * 60, "completion": "c" * (200 + 40 * n)} for n in range(7)], capacity=4096)
    show(store)
    batch = PackedDataset(store, pad_rows=True)[0]
    assert browser.value("document.querySelectorAll('#tokens .token').length") < batch.num_tokens / 4
    for scope in ("isolated", "concatenated"):
        browser.click(f"#switches [value={scope}]")
        browser.click("#switches [value=prefix]")
        mask = expected(batch, RULES["prefix"], isolated=scope == "isolated")
        for token in browser.value(SEEN):
            assert number(token["count"]) == int(mask[token["slot"]].sum())


def reading(browser: Any) -> dict[str, str]:
    names = ["text", "id", "slot", "segment", "position", "label", "count", "mode"]
    return browser.value(
        f"Object.fromEntries({json.dumps(names)}.map((n) => [n, document.getElementById('r-' + n).textContent]))"
    )


def test_a_click_shows_what_the_model_and_the_loss_get(
    browser: Any, show: Callable[..., Path], store: TokenStore
) -> None:
    show(store)
    row = make_report(store).row
    batch = PackedDataset(store, pad_rows=True)[row.number]
    slots = [
        int(np.flatnonzero(batch.labels >= 0)[3]),
        int(batch.starts[1]),
        int(np.flatnonzero(batch.segment_ids == 0)[0]),
    ]
    for slot in slots:
        browser.click(f"#tokens [data-slot='{slot}']")
        read, segment, label = reading(browser), int(batch.segment_ids[slot]), int(batch.labels[slot])
        assert read["id"] == str(batch.input_ids[slot])
        assert read["slot"] == f"{slot} of 64"
        assert read["segment"] == (str(segment) if segment else "0 (padding)")
        assert read["position"] == str(batch.position_ids[slot])
        assert read["label"] == (f"{label}, a target" if label >= 0 else "-100, no target")
        assert browser.value("document.querySelectorAll('#tokens [aria-pressed=true]').length") == 1
        assert browser.value("document.activeElement.dataset.slot") == str(slot)
    assert read["text"] == "padding"
    assert read["count"] == "0 positions"


def test_the_keyboard_reaches_every_token(browser: Any, show: Callable[..., Path], store: TokenStore) -> None:
    show(store)
    slots = browser.value("[...document.querySelectorAll('#tokens .token')].map((t) => Number(t.dataset.slot))")
    segments = browser.value("[...document.querySelectorAll('#tokens .token')].map((t) => Number(t.dataset.segment))")

    def press(key: str) -> int:
        browser.press(key)
        assert browser.value("document.activeElement.matches('#tokens .token.query')"), key
        assert browser.value("document.querySelectorAll('#tokens [tabindex=\"0\"]').length") == 1
        return slots.index(int(browser.value("document.activeElement.dataset.slot")))

    browser.value("document.getElementById('window').focus()")
    browser.press("Tab")
    assert browser.value("document.activeElement.matches('#tokens .token')"), "one Tab from the switches"
    assert press("Home") == 0
    assert press("ArrowLeft") == 0
    assert [press("ArrowRight") for _ in range(len(slots) - 1)] == list(range(1, len(slots)))
    assert press("ArrowRight") == press("End") == len(slots) - 1
    assert browser.value("getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is seen"
    press("Home")
    second = press("PageDown")
    assert segments[second] != segments[0]
    assert segments[:second] == [segments[0]] * second
    assert press("PageUp") == 0
    below = press("ArrowDown")
    tops = browser.value("[...document.querySelectorAll('#tokens .token')].map((t) => t.getBoundingClientRect().top)")
    assert tops[below] > tops[0]
    assert press("ArrowUp") < below


def test_the_grid_shows_the_same_mask(browser: Any, show: Callable[..., Path], store: TokenStore) -> None:
    show(store)
    row = make_report(store).row
    batch = PackedDataset(store, pad_rows=True)[row.number]
    slots = [token.slot for token in row.tokens]
    read = "[...document.querySelectorAll('#grid .{}')].map((r) => ['x','y','width'].map((n) => +r.getAttribute(n)))"
    for scope in ("isolated", "concatenated"):
        browser.click(f"#switches [value={scope}]")
        drawn = np.zeros((len(slots), len(slots)), bool)
        for kind in ("own", "stranger"):
            for x, y, width in browser.value(read.format(kind)):
                drawn[y, x : x + width] = True
        mask = expected(batch, Rule(), isolated=scope == "isolated")[np.ix_(slots, slots)]
        assert np.array_equal(drawn, mask)


HOSTILE = [
    "</script><script>document.title = 'taken'; alert(1)</script>",
    "<img src=x onerror=alert(1)> \"'><svg onload=alert(1)>",
    "--> ]]> {{ 7 * 7 }} ${7 * 7} &lt;b&gt; \u202e \x00\x1b[31m \u2028",
    "<!--<script>",
]


def test_text_of_the_corpus_stays_text(
    browser: Any, show: Callable[..., Path], make_store: Callable[..., TokenStore]
) -> None:
    store = make_store([{"prompt": text, "completion": text} for text in HOSTILE], capacity=512)
    for row in range(store.plan().num_rows):
        show(store, row=row)
        assert browser.value("document.title") == "store, packed to 512"
        assert browser.value("document.scripts.length") == 1
        assert browser.value("document.querySelectorAll('img, iframe, object, [onerror], [onload]').length") == 0
        assert "<" in browser.value("document.getElementById('tokens').textContent")
        browser.value(SEEN)


def test_markup_that_slipped_in_could_not_run(browser: Any, show: Callable[..., Path], store: TokenStore) -> None:
    page = show(store)
    page.write_text(page.read_text().replace("</main>", "<script>document.title = 'taken'</script></main>"))
    browser.open(page)
    assert browser.value("document.title") == "store, packed to 64"
    browser.value("1")
    assert any("Content Security Policy" in complaint for complaint in browser.complaints)
    browser.complaints.clear()


def luminance(colour: str) -> float:
    """Of `rgb(r, g, b)`, as WCAG 2 defines it."""
    channels = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


CONTRASTS = """Array.from(document.querySelectorAll("h1, p, dt, dd, td, th, a, .name, .token, li"), (element) => {
  let behind = element;
  while (behind && getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
  const under = behind ? getComputedStyle(behind).backgroundColor : "rgb(255, 255, 255)";
  return [element.className + " " + element.textContent.slice(0, 30), getComputedStyle(element).color, under];
})"""


@pytest.mark.parametrize("how", [{}, {"dark": True}, {"media": "print", "dark": True}], ids=["light", "dark", "print"])
def test_all_text_can_be_read(browser: Any, show: Callable[..., Path], store: TokenStore, how: dict) -> None:
    show(store, **how)
    browser.value("document.querySelector('#switches [value=concatenated]').click()")
    body = luminance(browser.value("getComputedStyle(document.body).backgroundColor"))
    assert body < 0.05 if how == {"dark": True} else body == 1
    for what, ink, paper in browser.value(CONTRASTS):
        light, dark = sorted([luminance(ink), luminance(paper)], reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{what}: {ink} on {paper}"


def test_a_phone_shows_all_without_scrolling_sideways(
    browser: Any, show: Callable[..., Path], store: TokenStore
) -> None:
    show(store, width=360, height=740)
    assert browser.value("document.documentElement.scrollWidth") == 360
    assert browser.value("getComputedStyle(document.querySelector('.token')).minHeight") != "0px"
    browser.click("#tokens .segment:nth-child(2) .token")
    top, bottom = browser.value(
        "(() => { const b = document.querySelector('aside').getBoundingClientRect(); return [b.top, b.bottom] })()"
    )
    assert top >= 0
    assert bottom <= 740, "what is read about a token is on the screen with it"


def test_pictures_differ_where_they_should(
    browser: Any, show: Callable[..., Path], store: TokenStore, tmp_path: Path
) -> None:
    show(store)
    light = browser.picture(tmp_path / "light.png")
    browser.click("#switches [value=concatenated]")
    leaking = browser.picture(tmp_path / "leaking.png")
    show(store, dark=True)
    dark = browser.picture(tmp_path / "dark.png")
    assert light[:8] == b"\x89PNG\r\n\x1a\n"
    assert len({light, leaking, dark}) == 3
    assert min(map(len, (light, leaking, dark))) > 20_000, "nothing was drawn"
