"""`padless pack`: text to packed rows."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from padless.cli._progress import progress
from padless.errors import PadlessError

EPILOG = """\b
Records: {"text"}, {"messages"}, {"prompt", "completion"} or {"input_ids"}; found by themselves.
The same command goes on after a kill. Nothing is cut, dropped or skipped unless you say so."""


@click.command(epilog=EPILOG)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option("-t", "--tokenizer", required=True, metavar="T", help="tokenizer.json, its folder, a hub name, or bytes.")
@click.option("-c", "--capacity", required=True, type=int, metavar="N", help="Tokens in a row.")
@click.option("-o", "--output", required=True, metavar="PLACE", help="Folder of the store, or a URL.")
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
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Who packs: this machine, or a Ray cluster; the bytes stay the same.",
)
@click.option("--address", metavar="HOST:PORT", help="The cluster. Default: $RAY_ADDRESS, else one on this machine.")
@click.option("--part-bytes", type=int, metavar="N", help="Files with N bytes together are a part, packed apart.")
@click.option(
    "--plan-by",
    type=click.Choice(["corpus", "part"]),
    default="corpus",
    show_default=True,
    help="One store and plan, or a store for each part.",
)
@click.option("--staging", type=click.Path(path_type=Path), help="With URLs: where on this machine work is done.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors (and --json).")
def command(
    inputs: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    no_eod: bool,
    engine: str,
    address: str | None,
    part_bytes: int | None,
    plan_by: str,
    output: str,
    staging: Path | None,
    **settings,
) -> None:
    """Turn text into packed, verified, reproducible rows."""
    from padless.corpus.job import Progress, run
    from padless.corpus.part_stores import PART_BYTES, PartStores, pack_parts
    from padless.corpus.remote import is_url, pack_remote
    from padless.corpus.request import PackRequest

    if part_bytes is None and (engine == "ray" or plan_by == "part"):
        part_bytes = PART_BYTES
    request = PackRequest(inputs=inputs, add_eod=not no_eod, part_bytes=part_bytes, output=Path(output), **settings)
    remote = any(map(is_url, (*inputs, output)))
    if remote and plan_by == "part":
        raise PadlessError("--plan-by part writes many stores as they are done, and to folders only; leave URLs out")
    if staging is not None and not remote:
        raise PadlessError(f"--staging {staging} is for inputs and outputs that are URLs; leave it out")
    with _engine(engine, address) as chosen, progress(quiet or as_json) as shown:

        def report(state: Progress) -> None:
            fraction = state.read / state.total if 0 < state.read <= state.total else None
            detail = f"{state.samples:,} samples, {state.tokens:,} tokens" if state.samples else ""
            shown.update(state.phase, fraction, detail)

        say = partial(_say, shown)
        if plan_by == "part":
            made = pack_parts(request, engine=chosen, report=report, say=say)
        elif remote:
            made = pack_remote(request, output, staging=staging, engine=chosen, report=report, say=say)
        else:
            made = run(request, engine=chosen, report=report, say=say)
    if as_json:
        click.echo(json.dumps(made.to_dict(), indent=2))
    elif not quiet:
        from padless.cli._summary import show, show_parts

        if isinstance(made, PartStores):
            show_parts(made, request.output)
        else:
            show(made, output if is_url(output) else request.output)


def _say(shown: Any, line: str) -> None:
    shown.say(f"  {line}")


@contextmanager
def _engine(name: str, address: str | None) -> Iterator[Any]:
    """Who packs; None is this process."""
    if name == "local":
        if address is not None:
            raise PadlessError(f"--address {address} names a Ray cluster; say --engine ray, or leave it out")
        yield None
        return
    from padless.frameworks.ray_engine import on_ray

    with on_ray(address) as engine:
        yield engine
