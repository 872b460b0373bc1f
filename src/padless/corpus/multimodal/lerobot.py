"""LeRobot data sets (v2 and v3 layouts): episodes of states, actions, a task and camera frames, in Parquet."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from padless.corpus.multimodal.images import ImageRef
from padless.errors import PadlessError

STATE, ACTION = "observation.state", "action"


class Step(NamedTuple):
    """One time step.

    Attributes:
        episode: Its number.
        frame: Number of the step in the episode.
        task: What the robot was told.
        state: float32[S], or None where there is none.
        action: float32[A], or None.
        images: One image per camera, by the name of its column.
    """

    episode: int
    frame: int
    task: str
    state: np.ndarray | None
    action: np.ndarray | None
    images: Mapping[str, ImageRef]


def read_steps(root: str | Path, *, cameras: Sequence[str] | None = None) -> Iterator[Step]:
    """The steps of a data set in the order of its files, as a stream.

    Args:
        root: The folder that holds `meta/info.json`.
        cameras: Columns of images to read, in this order; by default all of them.

    Raises:
        PadlessError: When the folder is no data set, a file is damaged, or a camera is stored as video, which this
            reader cannot decode.
    """
    root = Path(root)
    info = _json(root / "meta" / "info.json")
    features = info.get("features")
    if not isinstance(features, dict):
        raise PadlessError(f"{root}/meta/info.json names no features; is it a LeRobot data set?")
    kinds = {name: each.get("dtype") for name, each in features.items() if isinstance(each, dict)}
    chosen = [name for name, kind in kinds.items() if kind in ("image", "video")] if cameras is None else list(cameras)
    for name in chosen:
        if kinds.get(name) != "image":
            raise PadlessError(
                f"{root}: camera {name!r} is stored as {kinds.get(name) or 'nothing'}, and only frames in Parquet "
                f"(dtype image) can be read without a video decoder; give cameras= of those that are "
                f"({', '.join(n for n, k in kinds.items() if k == 'image') or 'none here'}), or decode the videos first"
            )
    tasks = _tasks(root)
    files = sorted((root / "data").rglob("*.parquet"))
    if not files:
        raise PadlessError(f"{root}/data holds no Parquet file")
    for file in files:
        yield from _steps(file, tasks, chosen)


def _steps(file: Path, tasks: Mapping[int, str], cameras: Sequence[str]) -> Iterator[Step]:
    try:
        with pq.ParquetFile(file) as table:
            names = table.schema_arrow.names
            own = [name for name in (STATE, ACTION) if name in names]
            wanted = ["episode_index", "frame_index", "task_index", *own, *cameras]
            missing = [name for name in wanted if name not in names]
            if missing:
                raise PadlessError(f"{file} has no column {', '.join(missing)}; its columns are {', '.join(names)}")
            for batch in table.iter_batches(batch_size=256, columns=wanted, use_threads=False):
                for row in batch.to_pylist():
                    yield _step(row, file, tasks, cameras)
    except (pa.ArrowException, OSError) as error:
        raise PadlessError(f"cannot read {file}: {str(error).splitlines()[0]}; it is damaged or cut short") from error


def _step(row: dict[str, Any], file: Path, tasks: Mapping[int, str], cameras: Sequence[str]) -> Step:
    where = f"{file} episode {row['episode_index']} frame {row['frame_index']}"
    if row["episode_index"] is None or row["frame_index"] is None:
        raise PadlessError(f"{where}: a step without a number of its episode or frame")
    if row["task_index"] not in tasks:
        raise PadlessError(f"{where}: task {row['task_index']} is not in meta/tasks")
    images = {}
    for camera in cameras:
        held = row[camera]
        if not isinstance(held, dict) or not isinstance(held.get("bytes"), bytes):
            raise PadlessError(f"{where}: {camera} holds no image bytes")
        images[camera] = ImageRef(name=f"{where} {camera}", data=held["bytes"])
    return Step(
        episode=int(row["episode_index"]),
        frame=int(row["frame_index"]),
        task=tasks[row["task_index"]],
        state=_vector(row.get(STATE), where, STATE),
        action=_vector(row.get(ACTION), where, ACTION),
        images=images,
    )


def _vector(value: Any, where: str, name: str) -> np.ndarray | None:
    if value is None:
        return None
    try:
        if None in value:  # numpy would make it NaN
            raise ValueError
        return np.asarray(value, dtype=np.float32).reshape(-1)
    except (TypeError, ValueError) as error:
        raise PadlessError(f"{where}: {name} is no vector of numbers") from error


def _tasks(root: Path) -> dict[int, str]:
    lines, table = root / "meta" / "tasks.jsonl", root / "meta" / "tasks.parquet"
    try:
        if lines.is_file():
            rows = [json.loads(line) for line in lines.read_text().splitlines() if line.strip()]
            return {int(row["task_index"]): str(row["task"]) for row in rows}
        read = pq.read_table(table).to_pylist()
        # v3 keeps the text in the index that pandas names after itself.
        return {int(row["task_index"]): str(row.get("task", row.get("__index_level_0__"))) for row in read}
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise PadlessError(
            f"cannot read the tasks of {root}: {error!r}; expected meta/tasks.jsonl or .parquet"
        ) from error


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise PadlessError(f"cannot read {path}: {error}; is it a LeRobot data set?") from error
    if not isinstance(value, dict):
        raise PadlessError(f"{path} holds a {type(value).__name__}, not a mapping")
    return value
