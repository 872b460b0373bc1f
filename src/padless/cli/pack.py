"""`padless pack`: text to packed rows."""

import json
from pathlib import Path

import click

from padless.cli._progress import progress

EPILOG = """\b
Records: {"text"}, {"messages"}, {"prompt", "completion"} or {"input_ids"}; found by themselves.
The same command goes on after a kill. Nothing is cut, dropped or skipped unless you say so."""


@click.command(epilog=EPILOG)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option("-t", "--tokenizer", required=True, metavar="T", help="tokenizer.json, its folder, a hub name, or bytes.")
@click.option("-c", "--capacity", required=True, type=int, metavar="N", help="Tokens in a row.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder of the store.")
@click.option(
    "--targets",
    type=click.Choice(["all", "completion", "assistant"]),
    help="Which tokens are trained on. Default: assistant for messages, completion for pairs, else all.",
)
@click.option("--field", metavar="NAME", help="Field that holds the data; PROMPT,COMPLETION for a pair.")
@click.option("--chat-template", metavar="FILE", help="Jinja file, or chatml. Default: the tokenizer's own.")
@click.option("--template-date", metavar="YYYY-MM-DD", help="The day that a template asking for one sees.")
@click.option("--eod", metavar="TOKEN", help="Token (or id) that ends a sample. Default: the tokenizer's own.")
@click.option("--no-eod", is_flag=True, help="Do not end samples with EOD.")
@click.option(
    "--oversize",
    type=click.Choice(["error", "truncate", "split", "drop"]),
    default="error",
    show_default=True,
    help="What becomes of a sample longer than a row.",
)
@click.option("--strategy", default="best-fit-decreasing", show_default=True, help="How rows are planned.")
@click.option("--align", default=1, show_default=True, help="Each segment takes a multiple of this many slots.")
@click.option("--max-segments", type=int, metavar="N", help="Most segments in a row. Default: no limit.")
@click.option("--seed", default=0, show_default=True, help="Which samples share a row.")
@click.option(
    "--on-bad-record",
    type=click.Choice(["error", "skip"]),
    default="error",
    show_default=True,
    help="skip goes on and writes rejected.jsonl.",
)
@click.option("--workers", default=1, show_default=True, help="Processes that encode; the bytes stay the same.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors (and --json).")
def command(inputs: tuple[str, ...], as_json: bool, quiet: bool, no_eod: bool, **settings) -> None:
    """Turn text into packed, verified, reproducible rows."""
    from padless.corpus.job import Progress, run
    from padless.corpus.request import PackRequest

    request = PackRequest(inputs=inputs, add_eod=not no_eod, **settings)
    silent = quiet or as_json
    with progress(silent) as shown:

        def report(state: Progress) -> None:
            fraction = state.read / state.total if 0 < state.read <= state.total else None
            detail = f"{state.samples:,} samples, {state.tokens:,} tokens" if state.samples else ""
            shown.update(state.phase, fraction, detail)

        summary = run(request, report=report, say=lambda line: shown.say(f"  {line}"))
    if as_json:
        click.echo(json.dumps(summary.to_dict(), indent=2))
    elif not quiet:
        from padless.cli._summary import show

        show(summary, request.output)
