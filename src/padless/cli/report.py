"""`padless report`: one HTML file that shows it to a colleague."""

from pathlib import Path

import click

DEFAULT = Path("report.html")


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--bench", type=click.Path(path_type=Path), help="What `padless bench step --json` printed.")
@click.option("--audit", type=click.Path(path_type=Path), help="What `padless audit --json` printed.")
@click.option("--capacity", type=int, help="Which saved plan; the only one unless given.")
@click.option("--row", type=int, help="The row in the mask inspector. Default: one of varied segments.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The HTML file. Default: report.html, unless --svg or --markdown is all that is asked for.",
)
@click.option("--svg", type=click.Path(path_type=Path), metavar="DIR", help="Write each chart as an SVG file there.")
@click.option("--markdown", is_flag=True, help="Print a table for a pull request.")
@click.option("-q", "--quiet", is_flag=True, help="Do not say what was written.")
def command(
    store: Path,
    bench: Path | None,
    audit: Path | None,
    capacity: int | None,
    row: int | None,
    output: Path | None,
    svg: Path | None,
    markdown: bool,
    quiet: bool,
) -> None:
    """Show a packed store: waste before and after, lengths, rows, balance, a mask inspector, and what was measured."""
    from padless.report import make_report

    report = make_report(store, capacity=capacity, bench=bench, audit=audit, row=row)
    if output is None and svg is None and not markdown:
        output = DEFAULT
    if output is not None:
        _write(output, report.html(), quiet)
    if svg is not None:
        for name, chart in report.charts.items():
            _write(svg / f"{name}.svg", chart.standalone(), quiet)
    if markdown:
        click.echo(report.markdown(), nl=False)


def _write(path: Path, content: str, quiet: bool) -> None:
    from padless.durable import write_bytes
    from padless.errors import PadlessError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content.encode())
    except OSError as error:
        raise PadlessError(f"cannot write {path}: {error.strerror}") from error
    if not quiet:
        click.echo(f"Wrote {path} ({len(content.encode()) / 1000:,.0f} kB)", err=True)
