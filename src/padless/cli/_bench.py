"""What the commands of `padless bench` that train share: options, the model, the samples."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import numpy as np

    from padless.measure import Trainee


def model_options(command: Callable) -> Callable:
    """Options that say what is measured and on what."""
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="No progress."),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, which `padless report` reads."),
        click.option(
            "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Also write that JSON to a file."
        ),
        click.option("--threads", type=click.IntRange(min=1), help="CPU threads. Default: as torch finds them."),
        click.option("--device", default="cpu", show_default=True, help="Where the model runs."),
        click.option("--dtype", default="float32", show_default=True, help="Of the weights, e.g. bfloat16."),
        click.option(
            "--repeats", type=click.IntRange(min=1), default=3, show_default=True, help="Medians are of these."
        ),
        click.option(
            "--model",
            default="llama-20m",
            show_default=True,
            help="llama-1m, llama-20m, llama-125m or llama-1b (random weights), a local Transformers directory, or "
            "module:function.",
        ),
    ):
        command = option(command)
    return command


def data_options(command: Callable) -> Callable:
    """Options that say which lengths, and how they are batched and packed."""
    for option in (
        click.option("--capacity", type=click.IntRange(min=1), help="Tokens of a packed row. Default: batch x length."),
        click.option(
            "--batch",
            type=click.IntRange(min=1),
            default=4,
            show_default=True,
            help="Samples of a padded micro-batch.",
        ),
        click.option(
            "--length", type=click.IntRange(min=2), help="What fixed-length rows are padded to. Default: the longest."
        ),
        click.option(
            "--samples",
            type=click.IntRange(min=1),
            default=24,
            show_default=True,
            help="How many of the data's samples make a step, at equal steps through its lengths.",
        ),
        click.option(
            "--column", metavar="NAME", help="Column of a table, or entry of a JSON object, with the lengths."
        ),
        click.option(
            "--data",
            required=True,
            type=click.Path(path_type=Path),
            help="A packed store, or lengths: .npy, .npz, .json, or a column of .csv or .parquet.",
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The samples of one step.

    Attributes:
        lengths: int64[N].
        ids: Token ids of each; random ones where only lengths are known.
        length: What fixed-length rows are padded to.
        batch: Samples of a padded micro-batch.
        capacity: Tokens of a packed row.
        said: What they are, in a line, with what was left out.
    """

    lengths: "np.ndarray"
    ids: "list[np.ndarray]"
    length: int
    batch: int
    capacity: int
    said: str

    @property
    def shape(self) -> dict[str, int]:
        """How they are batched."""
        return {"length": self.length, "batch": self.batch, "capacity": self.capacity}


def read_samples(
    data: Path,
    trainee: "Trainee",
    *,
    column: str | None,
    samples: int,
    length: int | None,
    batch: int,
    capacity: int | None,
) -> Samples:
    """Choose the samples of a step; what is longer than `length` is left out, counted and said."""
    import numpy as np

    from padless.corpus import TokenStore
    from padless.errors import PadlessError
    from padless.lengths import LengthHistogram, as_lengths, read_lengths
    from padless.measure.workloads import pick

    store = TokenStore(data) if data.is_dir() else None
    found = read_lengths(data, column) if store is None else store.lengths
    if isinstance(found, LengthHistogram):
        raise PadlessError(f"{data} is a histogram; give the lengths themselves, one number a sample")
    sizes = as_lengths(found)
    whole = np.flatnonzero((sizes >= 2) & (sizes <= (length or sizes.max())))
    if not len(whole):
        raise PadlessError(f"no sample of {data} has from 2 to {length:,} tokens; the shortest has {sizes.min():,}")
    chosen = whole[pick(sizes[whole], samples)]
    widest = length or int(sizes.max())
    if store is None:
        rng = np.random.default_rng(0)
        ids = [rng.integers(0, trainee.vocabulary, size) for size in sizes[chosen]]
    else:
        ids = [_known(store[int(number)].input_ids, trainee, data) for number in chosen]
    out = len(sizes) - len(whole)
    said = f"{len(chosen):,} of the {len(sizes):,} samples of {data.name}"
    said += f" ({out:,} longer than {widest:,} or of a single token left out)" if out else ""
    return Samples(
        lengths=sizes[chosen].astype(np.int64),
        ids=ids,
        length=widest,
        batch=batch,
        capacity=capacity or batch * widest,
        said=said + f", padded to {widest:,} in batches of {batch}, packed into {capacity or batch * widest:,}",
    )


def _known(ids: Any, trainee: "Trainee", data: Path) -> Any:
    from padless.errors import PadlessError

    if int(ids.max()) >= trainee.vocabulary:
        raise PadlessError(
            f"{data} holds token {int(ids.max())} and {trainee.name} knows {trainee.vocabulary:,}: the store was made "
            "with another tokenizer; give its lengths instead (.npy), or the model that belongs to it"
        )
    return ids.astype("int64")


@contextmanager
def trainee(
    model: str, *, dtype: str, device: str, threads: int | None, quiet: bool, data: Path | None = None
) -> "Iterator[tuple[Trainee, Callable[[str], None]]]":
    """The model, and what to call with what runs now; a random one knows the tokens of the store at `data`."""
    from padless.cli._progress import progress
    from padless.errors import require

    require("torch", extra="torch", feature="padless bench")
    import torch

    from padless.frameworks.trainees import load_trainee

    if threads is not None:
        torch.set_num_threads(threads)
    with progress(quiet) as shown:
        made = load_trainee(model, dtype=dtype, device=device, vocabulary=_vocabulary(data))
        yield made, lambda now: shown.update("measuring", None, now)


def _vocabulary(data: Path | None) -> int | None:
    if data is None or not data.is_dir():
        return None
    from padless.corpus import TokenStore

    made_by = TokenStore(data).manifest.tokenizer
    return None if made_by is None else made_by.vocab_size
