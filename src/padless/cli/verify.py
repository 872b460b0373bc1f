"""`padless verify`: check every promise that needs no model."""

import json
from pathlib import Path

import click

from padless.cli._progress import progress

PROMISES = {
    "files": "every file is there, byte for byte",
    "counts": "the numbers in the manifest are those of the files",
    "tokens": "every token is in the vocabulary; one EOD ends each sample",
    "targets": "what is trained on is what may be",
    "plans": "each sample once, no row over capacity, books that add up",
}


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit code says it.")
def command(store: Path, as_json: bool, quiet: bool) -> None:
    """Check every promise that needs no model. Exit code 1 when one does not hold."""
    from padless.corpus.verify import verify

    with progress(quiet or as_json) as shown:
        checks = verify(store, report=lambda name: shown.update(f"checking {name}", None, ""))
    broken = [check for check in checks if check.violations]
    if as_json:
        findings = [{"name": c.name, "seen": c.seen, "violations": list(c.violations)} for c in checks]
        click.echo(json.dumps({"ok": not broken, "checks": findings}, indent=2))
    elif not quiet:
        _show(store, checks, broken)
    if broken:
        raise click.exceptions.Exit(1)


def _show(store: Path, checks: list, broken: list) -> None:
    for check in checks:
        mark = click.style("FAILS", fg="red") if check.violations else click.style("holds", fg="green")
        click.echo(f"  {mark}  {check.name:8} {PROMISES[check.name]} ({check.seen})")
        for violation in check.violations:
            click.echo(f"         - {violation}")
    if not broken:
        click.echo(f"  {store} holds all it promises.")
    else:
        names = ", ".join(check.name for check in broken)
        click.echo(f"  {store} is not what its manifest says ({names}); restore it or pack again.", err=True)
