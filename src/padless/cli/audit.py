"""`padless audit`: prove on the user's own model that packing changed nothing."""

from pathlib import Path
from typing import Any

import click

from padless.errors import PadlessError


@click.command()
@click.argument("model", required=False)
@click.option("--random", is_flag=True, help="MODEL names an architecture; audit it with tiny random weights.")
@click.option("--attn", help="Attention implementation, e.g. sdpa, eager, padless. Default: the model's own.")
@click.option("--collator", help="padless, transformers, trl or module:function. Default: padless.")
@click.option(
    "--data", type=click.Path(path_type=Path), help="A packed store: its promises, and samples for the model."
)
@click.option("--checks", help="Comma-separated names; all by default.")
@click.option("--layers", type=int, help="Keep only the first N layers of a directory's model.")
@click.option("--dtype", help="Cast the model, e.g. bfloat16.")
@click.option("--no-cache", is_flag=True, help="Switch config.use_cache off first, as trainers do.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, which `padless report` reads.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Also write that JSON to a file.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write the report as one HTML file.")
@click.option("--explain", is_flag=True, help="Say what each check means, and what to do about each finding.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit code says it.")
def command(
    model: str | None, as_json: bool, output: Path | None, html: Path | None, explain: bool, quiet: bool, **options: Any
) -> None:
    """Prove on your own model that packing changed nothing.

    MODEL is a local Transformers directory, module:function returning an nn.Module, or with --random the name of an
    architecture (llama, qwen3, mamba2, ...). Without MODEL, --data alone checks a store.

    Exit codes: 0 all proven, 1 something leaks or is wrong, 2 wrong use, 3 something could not be decided.
    """
    from padless.cli import _audit_report as shown
    from padless.cli._json import deliver
    from padless.cli._progress import progress

    if model is None and options["data"] is None:
        raise click.UsageError("give a MODEL, or --data STORE, or both")
    with progress(quiet or as_json) as now:
        report = _audit(model, now, **options)
    if html is not None:
        from padless.auditing.page import write_page

        write_page(report, html)
    deliver(report.to_json(), as_json=as_json, output=output)
    if not as_json and not quiet:
        shown.show(report, explain=explain)
        if html is not None:
            click.echo(f"report written to {html}")
    raise click.exceptions.Exit(report.exit_code)


def _audit(model: str | None, progress: Any, *, data: Path | None, checks: str | None, **options: Any) -> Any:
    from padless.auditing.report import AuditReport

    if model is None:
        if checks is not None:
            raise PadlessError("--checks names checks of a model; give a MODEL")
        assert data is not None
        return _store(data)
    stored = None if data is None else _store(data)
    if stored is not None and stored.exit_code:
        return stored  # no model can be judged by a store that is not what it says
    report = _model(model, progress, data=data, checks=checks, **options)
    if stored is None:
        return report
    return AuditReport(
        subject=f"{report.subject} on {data}",
        results=(*(_renamed(result) for result in stored), *report),
        settings=report.settings,
    )


def _store(data: Path) -> Any:
    from padless.auditing.data import audit_store

    return audit_store(data)


def _renamed(result: Any) -> Any:
    from dataclasses import replace

    return replace(result, name=f"store: {result.name}")


def _model(
    name: str,
    progress: Any,
    *,
    data: Path | None,
    checks: str | None,
    random: bool,
    attn: str | None,
    collator: str | None,
    layers: int | None,
    dtype: str | None,
    no_cache: bool,
    seed: int,
) -> Any:
    from padless.errors import require

    require("torch", extra="torch", feature="padless audit")
    from padless.auditing import audit
    from padless.cli._audit_report import told
    from padless.frameworks import auditables

    stored = None
    if data is not None:
        from padless.auditing.data import samples_of

        stored = samples_of(data)
        if stored.cut:
            progress.say(
                f"{stored.cut} of {len(stored.samples)} samples of {data} are cut to 128 tokens for this audit"
            )
    model = auditables.load_model(
        name,
        random=random,
        attention=attn,
        layers=layers,
        dtype=dtype,
        cache=not no_cache,
        vocabulary=None if stored is None else stored.vocab_size,
    )
    if stored is not None:
        auditables.check_vocabulary(model, stored.samples, data)
    named = collator or ("padless" if auditables.is_transformers(model) else None)
    return audit(
        model,
        None if named is None else auditables.collator(named),
        checks=None if checks is None else [c.strip() for c in checks.split(",") if c.strip()],
        samples=None if stored is None else stored.samples,
        eod=None if stored is None else stored.eod,
        count_argument=auditables.count_argument(model),
        shift=auditables.shift_of(model),
        seed=seed,
        name=f"{name} ({type(model).__name__}, collator {named or 'of the audit'})",
        progress=told(progress),
    )
