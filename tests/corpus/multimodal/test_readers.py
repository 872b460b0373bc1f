"""Records with images from every format: read in order, nothing decoded early, damage told apart from data."""

import base64
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padless.corpus.multimodal import ImageRef, MediaRecord, read_media, read_steps
from padless.corpus.sources import BadRecord
from padless.errors import PadlessError


def picture(value: int, height: int = 6, width: int = 9) -> bytes:
    data = ImageRef.of_pixels(np.full((height, width, 3), value, dtype=np.uint8)).data
    assert data is not None
    return data


def values(record: MediaRecord | BadRecord) -> list[int]:
    assert isinstance(record, MediaRecord), record
    return [int(image.pixels()[0, 0, 0]) for image in record.images]


def jsonl(folder: Path, rows: list[Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_json_lines_with_paths_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(picture(10))
    text = base64.b64encode(picture(20)).decode()
    rows = [
        {"images": ["pictures/a.png", f"data:image/png;base64,{text}", {"bytes": text}], "question": "where?"},
        {"image": {"path": "pictures/a.png"}, "question": "what?"},
        {"question": "text alone"},
        {"images": None, "question": "nothing to see"},
    ]
    found = list(read_media(jsonl(tmp_path, rows)))
    assert [values(record) for record in found] == [[10, 20, 20], [10], [], []]
    assert found[0].fields == {"question": "where?"}
    assert [record.number for record in found] == [1, 2, 3, 4]


def test_parquet_with_bytes_as_columns_and_as_datasets_writes_them(tmp_path: Path) -> None:
    table = pa.table(
        {
            "image": [picture(1), None],
            "images": [[{"bytes": picture(2), "path": None}, {"bytes": picture(3), "path": "c.png"}], []],
            "text": ["a", "b"],
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    assert [values(record) for record in read_media(tmp_path / "rows.parquet")] == [[1, 2, 3], []]
    named = list(read_media(tmp_path / "rows.parquet", columns=["image"]))
    assert [values(record) for record in named] == [[1], []]
    with pytest.raises(PadlessError, match=r"no record of .* has a field named photo"):
        list(read_media(tmp_path / "rows.parquet", columns=["photo"]))


def shard(path: Path, members: list[tuple[str, bytes]], mode: Any = "w") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


MEMBERS = [
    ("a/0001.left.png", picture(1)),
    ("a/0001.right.png", picture(2)),
    ("a/0001.json", b'{"task": "open"}'),
    ("a/0002.left.png", picture(3)),
    ("a/0002.txt", b"close"),
]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_webdataset_shards(tmp_path: Path, mode: str) -> None:
    found = list(read_media(shard(tmp_path / "0.tar", MEMBERS, mode)))
    assert [values(record) for record in found] == [[1, 2], [3]]
    assert found[0].fields == {"__key__": "a/0001", "json": {"task": "open"}}
    assert found[1].fields == {"__key__": "a/0002", "txt": "close"}


def test_webdataset_folders_and_faults(tmp_path: Path) -> None:
    shard(tmp_path / "1.tar", [("x.json", b"{"), ("y.png", picture(4))])
    shard(tmp_path / "0.tar", MEMBERS)
    found = list(read_media(tmp_path))
    assert [type(record) for record in found] == [MediaRecord, MediaRecord, BadRecord, MediaRecord]
    apart = shard(tmp_path / "apart.tar", [("a.png", b"1"), ("b.png", b"2"), ("a.txt", b"3")])
    with pytest.raises(PadlessError, match="comes again after others"):
        list(read_media(apart))
    twice = shard(tmp_path / "twice.tar", [("a.png", b"1"), ("a.png", b"2")])
    with pytest.raises(PadlessError, match="two members"):
        list(read_media(twice))
    with pytest.raises(PadlessError, match="no record"):
        list(read_media(shard(tmp_path / "empty.tar", [])))


@pytest.mark.parametrize("block", [2, 4, 7])
def test_a_shard_that_ends_or_breaks_at_a_header_does_not_pass_for_a_short_one(tmp_path: Path, block: int) -> None:
    """Each member here is a block of header and a block of data; `tarfile` itself stops there without an error."""
    whole = shard(tmp_path / "0.tar", [(f"{i}.txt", b"x" * 512) for i in range(4)]).read_bytes()
    at = 512 * block
    cut = tmp_path / "cut.tar"
    cut.write_bytes(whole[: at + 300 * (block % 2)])
    with pytest.raises(PadlessError, match="cannot read"):
        list(read_media(cut))
    if block % 2 == 0:
        cut.write_bytes(whole[:at] + b"?" + whole[at + 1 :])
        with pytest.raises(PadlessError, match="bad checksum"):
            list(read_media(cut))


def test_sizes_come_from_the_header_alone(tmp_path: Path) -> None:
    whole = picture(7, 300, 200)
    assert ImageRef(name="cut", data=whole[:200]).size() == (300, 200), "there are no pixels in it"
    with pytest.raises(PadlessError, match="cannot read image cut"):
        ImageRef(name="cut", data=whole[:200]).pixels()
    with pytest.raises(PadlessError, match="missing"):
        ImageRef(name="gone", path=tmp_path / "gone.png").size()


def test_cameras_that_were_turned_are_seen_upright() -> None:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    sink = io.BytesIO()
    Image.fromarray(np.zeros((4, 8, 3), dtype=np.uint8)).save(sink, format="JPEG", exif=exif)
    turned = ImageRef(name="turned", data=sink.getvalue())
    assert turned.size() == turned.pixels().shape[:2] == (8, 4)


def robot(root: Path, *, version: int, camera: str = "image") -> Path:
    """Two episodes of two steps, as LeRobot 2 (a file each) or 3 (one file) lays them out."""
    features = {
        "observation.state": {"dtype": "float32", "shape": [3]},
        "action": {"dtype": "float32", "shape": [2]},
        "observation.images.front": {"dtype": "image", "shape": [6, 9, 3]},
        "observation.images.wrist": {"dtype": camera, "shape": [6, 9, 3]},
    }
    (root / "meta").mkdir(parents=True)
    (root / "meta" / "info.json").write_text(json.dumps({"codebase_version": f"v{version}.0", "features": features}))
    if version == 2:
        lines = [{"task_index": i, "task": f"task {i}"} for i in range(2)]
        (root / "meta" / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        tasks = pa.table({"task_index": [0, 1], "__index_level_0__": ["task 0", "task 1"]})
        pq.write_table(tasks, root / "meta" / "tasks.parquet")
    rows = [
        {
            "observation.state": [float(episode), float(frame), 0.0],
            "action": [1.0, 2.0],
            "observation.images.front": {"bytes": picture(10 * episode + frame), "path": None},
            **({"observation.images.wrist": {"bytes": picture(50), "path": None}} if camera == "image" else {}),
            "episode_index": episode,
            "frame_index": frame,
            "task_index": episode,
        }
        for episode in range(2)
        for frame in range(2)
    ]
    files = {"episode_000000": rows[:2], "episode_000001": rows[2:]} if version == 2 else {"file-000": rows}
    (root / "data" / "chunk-000").mkdir(parents=True)
    for name, held in files.items():
        pq.write_table(pa.Table.from_pylist(held), root / "data" / "chunk-000" / f"{name}.parquet")
    return root


@pytest.mark.parametrize("version", [2, 3])
def test_lerobot_episodes(tmp_path: Path, version: int) -> None:
    steps = list(read_steps(robot(tmp_path / "set", version=version)))
    assert [(step.episode, step.frame, step.task) for step in steps] == [
        (0, 0, "task 0"), (0, 1, "task 0"), (1, 0, "task 1"), (1, 1, "task 1"),
    ]  # fmt: skip
    assert steps[3].state is not None
    assert steps[3].state.tolist() == [1.0, 1.0, 0.0]
    assert list(steps[3].images) == ["observation.images.front", "observation.images.wrist"]
    assert int(steps[3].images["observation.images.front"].pixels()[0, 0, 0]) == 11


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("episode_index", None, "without a number"),
        ("task_index", 7, "task 7 is not in meta/tasks"),
        ("action", [None, 1.0], "action is no vector of numbers"),
        ("action", 1.0, "action is no vector of numbers"),
        ("observation.images.front", {"bytes": None, "path": "front.png"}, "holds no image bytes"),
    ],
)
def test_steps_that_lack_something_are_refused(tmp_path: Path, column: str, value: Any, says: str) -> None:
    root = robot(tmp_path / "set", version=3)
    file = root / "data" / "chunk-000" / "file-000.parquet"
    rows = pq.read_table(file).to_pylist()
    for row in rows[0 if column == "action" and not isinstance(value, list) else -1 :]:
        row[column] = value
    pq.write_table(pa.Table.from_pylist(rows), file)
    with pytest.raises(PadlessError, match=says):
        list(read_steps(root))


def test_a_camera_stored_as_video_is_refused_and_the_others_can_be_named(tmp_path: Path) -> None:
    root = robot(tmp_path / "set", version=2, camera="video")
    with pytest.raises(PadlessError, match=r"wrist' is stored as video.*observation.images.front"):
        list(read_steps(root))
    assert len(list(read_steps(root, cameras=["observation.images.front"]))) == 4
    with pytest.raises(PadlessError, match="stored as nothing"):
        list(read_steps(root, cameras=["left"]))
    with pytest.raises(PadlessError, match="LeRobot"):
        list(read_steps(tmp_path))


def consume(path: Path) -> None:
    """Everything a reader can be asked for."""
    for record in read_media(path):
        for image in record.images if isinstance(record, MediaRecord) else ():
            image.size()
            image.pixels()


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_files_give_padless_errors_and_nothing_else(data: st.DataObject, tmp_path_factory: Any) -> None:
    folder = _whole(tmp_path_factory)
    name = data.draw(st.sampled_from(["0.tar", "1.tar.gz.tar", "rows.parquet", "rows.jsonl"]))
    raw = bytearray((folder / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        kind = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        if kind == "flip":
            raw[at] ^= data.draw(st.integers(1, 255))
        elif kind == "cut":
            raw = raw[: max(at, 1)]
        else:
            raw[at:at] = data.draw(st.binary(min_size=1, max_size=8))
    damaged = folder / "damaged" / name
    damaged.write_bytes(raw)
    try:
        consume(damaged)
    except PadlessError:
        return


@given(st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_bytes_that_are_no_image_give_padless_errors(noise: bytes) -> None:
    for data in (noise, picture(1)[:33] + noise, b"\xff\xd8\xff" + noise, b"GIF89a" + noise, b"II*\0" + noise):
        for look in (ImageRef.size, ImageRef.pixels):
            try:
                look(ImageRef(name="noise", data=data))
            except PadlessError:
                continue


_MADE: list[Path] = []


def _whole(factory: Any) -> Path:
    if not _MADE:
        folder = factory.mktemp("whole")
        (folder / "damaged").mkdir()
        shard(folder / "0.tar", MEMBERS)
        shard(folder / "1.tar.gz.tar", MEMBERS, "w:gz")
        jsonl(folder, [{"images": [{"bytes": base64.b64encode(picture(i)).decode()}]} for i in range(3)])
        pq.write_table(pa.table({"image": [picture(i) for i in range(3)]}), folder / "rows.parquet")
        _MADE.append(folder)
    return _MADE[0]
