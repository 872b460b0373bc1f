"""The tables of a report as rows of text, the same for a page and for a pull request."""

import numpy as np

from padless.report.facts import Facts
from padless.report.given import Audit, Bench
from padless.report.ranks import Balance

__all__ = ["BOUNDS", "audit_line", "balance_rows", "bench_table", "length_rows", "plan_facts", "waste_rows"]

Rows = list[tuple[str, ...]]

BOUNDS = {
    "L1": "the tokens alone need that many rows",
    "L2": "samples longer than half a row cannot share one (Martello and Toth's bound L2)",
    "max-segments": "no row may hold more segments than the plan allows",
    "LP": "the linear relaxation of the cutting-stock problem, rounded up",
}


def waste_rows(facts: Facts) -> Rows:
    """`(what, padded, packed)`: where the slots went, before and after."""
    books, before = facts.plan.accounting, facts.slots_before
    rows = [
        ("rows", books.segments, books.rows),
        (f"slots (rows x {facts.plan.capacity:,})", before, books.slots),
        ("real tokens", books.real_tokens, books.real_tokens),
        ("tail padding", before - books.real_tokens, books.tail_padding),
        ("alignment padding", 0, books.alignment_padding),
        ("batch padding", 0, books.batch_padding),
    ]
    return [
        *((name, f"{padded:,}", f"{packed:,}") for name, padded, packed in rows),
        ("waste", f"{facts.waste_before:.2%}", f"{books.waste_rate:.2%}"),
        ("segments per row", "1.0", f"{books.segments / books.rows:.1f}"),
    ]


def balance_rows(balance: Balance) -> Rows:
    """`(dealt, mean, worst)`: the slowest rank's cost over the mean rank's."""
    return [(way.name, f"{way.mean:.3f}", f"{way.worst:.3f}") for way in balance.ways]


def length_rows(facts: Facts) -> Rows:
    """`(what, tokens or segments)`: lengths and rows in a few numbers."""
    lengths, rows = facts.lengths, facts.row_tokens
    low, median, most, high = np.quantile(lengths, [0, 0.5, 0.9, 1], method="lower").tolist()
    widths = facts.row_segments
    return [
        ("shortest sample", f"{low:,} tokens"),
        ("median", f"{median:,} tokens"),
        ("mean", f"{lengths.mean():,.1f} tokens"),
        ("nine of ten are at most", f"{most:,} tokens"),
        ("longest", f"{high:,} tokens"),
        ("rows are full to", f"{rows.mean() / facts.plan.capacity:.2%} on average"),
        ("the emptiest to", f"{rows.min() / facts.plan.capacity:.2%}"),
        ("segments in a row", f"{widths.min():,} to {widths.max():,}"),
    ]


def bench_table(bench: Bench) -> tuple[list[str], Rows]:
    """Header and a row for each arm; what is absent is a dash, and a column of notes is there if there are any."""
    header = ["", "step (s)", "real tokens/s", "ratio", "of the ideal", "peak memory", "note"]
    rows: Rows = []
    for arm in bench.arms:
        ratio = bench.ratio_of(arm)
        rows.append(
            (
                arm.name,
                _or_dash(arm.seconds, "{:.3g}"),
                _or_dash(arm.real_tokens_per_second, "{:,.0f}"),
                _or_dash(ratio, "{:.2f}x"),
                _or_dash(ratio / bench.ideal_ratio if ratio is not None and bench.ideal_ratio else None, "{:.1%}"),
                _or_dash(None if arm.peak_memory is None else arm.peak_memory / 2**20, "{:,.0f} MiB"),
                arm.note,
            )
        )
    if any(arm.note for arm in bench.arms):
        return header, rows
    return header[:-1], [row[:-1] for row in rows]


def audit_line(audit: Audit) -> str:
    """How many checks came out how."""
    verdicts = ("proven", "violated", "undecided", "not-applicable")
    return ", ".join(f"{audit.count(verdict)} {verdict}" for verdict in verdicts if audit.count(verdict))


def plan_facts(facts: Facts) -> Rows:
    """`(what, value)`: all that decides the rows and what they mean, for who has to reproduce them."""
    manifest, plan = facts.manifest, facts.plan
    spec, tokenizer, encoding = plan.spec, manifest.tokenizer, manifest.encoding
    coded = (
        f"{encoding.shape}, targets {encoding.targets}, EOD {'yes' if encoding.eod else 'no'}, {encoding.dtype}, "
        f"bad records: {encoding.on_bad_record}"
    )
    rows: Rows = [(name, getattr(manifest.conventions, name)) for name in manifest.conventions.__struct_fields__]
    rows += [
        ("strategy", f"{spec.strategy}, seed {spec.seed}, align {spec.align}, oversize {spec.oversize}"),
        ("most segments in a row", "no limit" if spec.max_segments is None else f"{spec.max_segments:,}"),
        ("encoding", coded),
    ]
    if tokenizer is not None:
        rows += [
            ("tokenizer", f"{tokenizer.name}: {tokenizer.vocab_size:,} tokens, EOD {tokenizer.eod_id}"),
            ("tokenizer fingerprint", tokenizer.fingerprint),
            ("chat template fingerprint", tokenizer.template_fingerprint or "none used"),
        ]
    rows += [("store fingerprint", manifest.fingerprint), ("plan fingerprint", plan.fingerprint)]
    versions = manifest.versions
    rows.append(("written by", ", ".join(f"{n} {getattr(versions, n)}" for n in versions.__struct_fields__)))
    return rows


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
