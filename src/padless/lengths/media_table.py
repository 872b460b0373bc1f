"""What each sample of a multimodal data set holds, before anything is decoded: text tokens, and sizes of views."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from padless.errors import PadlessError

FIELDS = ("name", "frames", "height", "width")
MOST = 2**31 - 1  # of tokens, frames or pixels: products of two fit int64


@dataclass(frozen=True, kw_only=True, eq=False)
class MediaTable:
    """Samples and their views, as columns: N samples with M views together.

    Attributes:
        text: int64[N], text tokens of each sample.
        sample: int64[M], which sample a view belongs to, ascending.
        slot: int64[M], which of `names` it is.
        names: Slot names: cameras, or kinds of media.
        frames: int64[M], frames of the view; 1 for an image.
        height: int64[M], in pixels.
        width: int64[M].

    Example:
        >>> table = MediaTable.of([{"text": 9, "media": [{"name": "top", "frames": 1, "height": 224, "width": 224}]}])
        >>> table
        MediaTable(1 samples, 1 views of top)
    """

    text: np.ndarray
    sample: np.ndarray
    slot: np.ndarray
    names: tuple[str, ...]
    frames: np.ndarray
    height: np.ndarray
    width: np.ndarray

    def __post_init__(self) -> None:
        views = {name: getattr(self, name) for name in ("sample", "slot", "frames", "height", "width")}
        for name, values in {"text": self.text, **views}.items():
            if values.ndim != 1 or values.dtype.kind not in "iu" or (len(values) and values.min() < 0):
                raise PadlessError(f"{name} must be whole numbers from 0, not {values.dtype} {values.shape}")
        if len({len(values) for values in views.values()}) > 1:
            raise PadlessError(f"views have columns of {sorted({len(v) for v in views.values()})} entries")
        for name in ("frames", "height", "width"):
            if len(views[name]) and views[name].min() < 1:
                raise PadlessError(f"a view of sample {int(self.sample[views[name].argmin()])} has {name} 0")

    @classmethod
    def of(cls, records: list[dict[str, Any]]) -> "MediaTable":
        """From records `{"text": tokens, "media": [{"name", "frames", "height", "width"}, ..]}`; no frames: one.

        Raises:
            PadlessError: For a record of another shape; the message names it.
        """
        text: list[int] = []
        views: list[tuple[int, str, int, int, int]] = []
        for number, record in enumerate(records):
            try:
                text.append(_whole(record["text"]))
                for view in record["media"] or ():
                    sizes = [_whole(view.get(field, 1) if field == "frames" else view[field]) for field in FIELDS[1:]]
                    views.append((number, str(view["name"]), *sizes))  # type: ignore[arg-type]
            except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
                raise PadlessError(
                    f"record {number} is not {{'text': tokens, 'media': [{{{', '.join(FIELDS)}}}, ..]}} ({error!r})"
                ) from error
        names = tuple(dict.fromkeys(view[1] for view in views))
        columns = [[view[i] for view in views] for i in range(5)]
        columns[1] = [names.index(name) for name in columns[1]]
        sample, slot, frames, height, width = (np.array(column, dtype=np.int64) for column in columns)
        return cls(
            text=np.array(text, dtype=np.int64),
            sample=sample,
            slot=slot,
            names=names,
            frames=frames,
            height=height,
            width=width,
        )

    @property
    def num_samples(self) -> int:
        """N."""
        return len(self.text)

    def __repr__(self) -> str:
        views = f"{len(self.sample):,} views of {', '.join(self.names) or 'nothing'}"
        return f"MediaTable({self.num_samples:,} samples, {views})"


def _whole(value: Any) -> int:
    number = int(value)
    if number != value or abs(number) > MOST:
        raise ValueError(f"{value!r} is no whole number up to {MOST:,}")
    return number


def read_media_table(path: str | Path) -> MediaTable:
    """Read a table of samples and views from `.jsonl` or `.parquet`; see `MediaTable.of` for the records.

    Raises:
        PadlessError: The file is missing, of another kind, or holds other records.
    """
    path = Path(path)
    if not path.is_file() or path.suffix.lower() not in (".jsonl", ".parquet"):
        raise PadlessError(f"{path}: views are read from a .jsonl or .parquet of records with text and media")
    try:
        if path.suffix.lower() == ".jsonl":
            records = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        else:
            import pyarrow.parquet

            records = pyarrow.parquet.read_table(path, columns=["text", "media"]).to_pylist()
    except (ValueError, OSError) as error:
        raise PadlessError(f"{path} cannot be read as such a table ({error})") from error
    return MediaTable.of(records)
