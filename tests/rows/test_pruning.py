"""Pruning rules against a loop over samples, what is refused, and that a plan and a manifest say what was pruned."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless import Plan, TokenStore, plan
from padless.corpus.manifest import read_manifest
from padless.errors import PadlessError
from padless.lengths.media_table import MediaTable, read_media_table
from padless.rows.grids import QWEN2_5_VL, SIGLIP_224, PatchGrid
from padless.rows.pruning import PruningRule, prune


def reference(records: list[dict[str, Any]], rules: list[PruningRule], sizes: PatchGrid) -> list[int]:
    """Tokens of each sample, one view at a time."""
    lengths = []
    for record in records:
        total = record["text"]
        for view in record["media"]:
            frames, height, width = view.get("frames", 1), view["height"], view["width"]
            for rule in rules:
                if rule.view not in (None, view["name"]):
                    continue
                if rule.kind == "drop":
                    frames = 0
                elif rule.kind == "every":
                    frames = len(range(0, frames, rule.amount))
                elif height * width > rule.amount:
                    scale = (rule.amount / (height * width)) ** 0.5
                    height, width = max(1, int(height * scale)), max(1, int(width * scale))
            if frames:
                grid = sizes.image(height, width) if frames == 1 else sizes.frames(frames, height, width)
                total += sizes.tokens(grid)
        lengths.append(total)
    return lengths


VIEWS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["base", "wrist", "history"]),
        "frames": st.integers(1, 9),
        "height": st.integers(100, 900),
        "width": st.integers(100, 900),
    }
)
RULES = st.sampled_from(["drop:wrist", "every:2", "every:3:history", "cap:50176", "cap:20000:base"])


@settings(max_examples=60, deadline=None)
@given(
    records=st.lists(
        st.fixed_dictionaries({"text": st.integers(1, 50), "media": st.lists(VIEWS, max_size=4)}),
        min_size=1,
        max_size=5,
    ),
    rules=st.lists(RULES, min_size=1, max_size=3, unique=True),
    sizes=st.sampled_from([QWEN2_5_VL, SIGLIP_224]),
)
def test_pruned_lengths_are_those_of_a_loop(records, rules, sizes) -> None:
    parsed = [PruningRule.parse(rule) for rule in rules]
    assert [str(rule) for rule in parsed] == rules
    if not _all_work(records, parsed, sizes):
        with pytest.raises(PadlessError, match=r"there is no view|takes no token away"):
            prune(MediaTable.of(records), parsed, sizes)
        return
    pruned = prune(MediaTable.of(records), parsed, sizes)
    assert pruned.before.tolist() == reference(records, [], sizes)
    assert pruned.after.tolist() == reference(records, parsed, sizes)
    assert sum(was - left for was, left in pruned.views.values()) == (pruned.before - pruned.after).sum()


def _all_work(records, rules: list[PruningRule], sizes: PatchGrid) -> bool:
    """Whether every rule finds its view, and takes something away that those before it left."""
    names = {view["name"] for record in records for view in record["media"]}
    totals = [sum(reference(records, rules[:count], sizes)) for count in range(len(rules) + 1)]
    return all(rule.view is None or rule.view in names for rule in rules) and len(set(totals)) == len(totals)


@pytest.mark.parametrize(
    "text", ["drop", "drop:", "every:1", "every:x", "cap:0", "cap", "keep:2", "every:-2", "every:²"]
)
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(PadlessError):
        PruningRule.parse(text)


def test_a_rule_that_names_no_view_or_does_nothing_is_refused() -> None:
    with pytest.raises(PadlessError, match="sample 1 holds no token and no view"):
        prune(MediaTable.of([{"text": 3, "media": []}, {"text": 0, "media": []}]), [], SIGLIP_224)
    table = MediaTable.of([{"text": 3, "media": [{"name": "base", "height": 224, "width": 224}]}])
    with pytest.raises(PadlessError, match="there are base"):
        prune(table, [PruningRule.parse("drop:wrist")], SIGLIP_224)
    with pytest.raises(PadlessError, match="takes no token away"):
        prune(table, [PruningRule.parse("cap:100")], SIGLIP_224)  # a fixed tower makes every picture 224 pixels
    with pytest.raises(PadlessError, match="without a token"):
        prune(
            MediaTable.of([{"text": 0, "media": [{"name": "base", "height": 224, "width": 224}]}]),
            [PruningRule.parse("drop:base")],
            SIGLIP_224,
        )


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_tables_are_read(tmp_path: Path, suffix: str) -> None:
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    records = [
        {"text": 5, "media": [{"name": "base", "frames": 2, "height": 10, "width": 20}]},
        {"text": 7, "media": []},
    ]
    path = tmp_path / f"views{suffix}"
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        pq.write_table(pa.Table.from_pylist(records), path)
    table = read_media_table(path)
    assert (table.text.tolist(), table.frames.tolist(), table.names) == ([5, 7], [2], ("base",))
    path.write_text("no table")
    with pytest.raises(PadlessError):
        read_media_table(path)


@pytest.mark.parametrize(
    "record",
    [
        {"text": 1},
        {"text": 1, "media": [{"name": "a"}]},
        {"text": 1, "media": ["a"]},
        {},
        {"text": 3.5, "media": []},
        {"text": 10**20, "media": []},
        {"text": float("inf"), "media": []},
        {"text": 1, "media": [{"name": "a", "height": "40", "width": 40}]},
    ],
)
def test_other_records_are_refused(record: dict[str, Any]) -> None:
    with pytest.raises(PadlessError, match="record 0 is not"):
        MediaTable.of([record])


def test_a_plan_and_the_manifest_say_what_was_pruned(tmp_path: Path) -> None:
    from dataclasses import replace

    store = TokenStore.write(tmp_path / "store", [np.arange(n) for n in (4, 6, 5)], vocab_size=8)
    pruned = replace(plan(store.lengths, 16), pruning=("drop:wrist",))
    pruned.save(tmp_path / "plan.npz")
    assert Plan.load(tmp_path / "plan.npz") == pruned != plan(store.lengths, 16)
    store.add_plan(pruned)
    assert read_manifest(store.path).plans[0].pruning == ("drop:wrist",)
    assert store.plan(16).pruning == ("drop:wrist",)


def test_a_pruned_plan_does_not_fit_a_store_that_was_not_pruned(tmp_path: Path) -> None:
    from dataclasses import replace

    store = TokenStore.write(tmp_path / "store", [np.arange(n) for n in (4, 6, 5)], vocab_size=8)
    with pytest.raises(PadlessError, match="rows would hold the wrong tokens"):
        store.add_plan(replace(plan([3, 5, 4], 16), pruning=("drop:wrist",)))
