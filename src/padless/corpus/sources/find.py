"""From what the user typed to a list of sources, always in the same order."""

import atexit
import glob
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

from padless.corpus.sources.indexed import is_mask
from padless.corpus.sources.source import Format, Source
from padless.errors import PadlessError

_FORMATS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".idx": "indexed",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".rst": "text",
}
_PACKED = (".gz", ".zst")
_ABOUT_DATA = ("readme", "license", "licence", "notice", "copying")  # text files whose names begin so
_ABOUT_SETS = ("dataset_info.json", "dataset_infos.json", "state.json", "sources.json", "export.json")
_STORE_FILES = ("manifest.json", "job.json")
_ACCEPTED = (
    "accepted are .jsonl .ndjson .json (each also .gz or .zst), .parquet, .arrow, .feather, .idx (Megatron, with its "
    ".bin), text files (.txt .text .md .rst), folders of one of these, folders written by save_to_disk, and - for JSON "
    "lines from standard input"
)


def find_sources(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    format: Format | None = None,  # noqa: A002 - the field's word
    on_ignored: Callable[[Path], None] | None = None,
) -> list[Source]:
    """What the user named, as sources in a fixed order: as typed, and by name within a folder or a glob.

    Args:
        inputs: Files, folders (walked in full, hidden entries left out), globs (`**` too), or `-`.
        format: How to read every file, whatever it is called. By default its name says it.
        on_ignored: Called with each file in a folder that is no data by its name.

    Raises:
        PadlessError: When an input does not exist, is empty, has no known format, holds several, or comes twice.

    Example:
        >>> find_sources(["missing.jsonl"])
        Traceback (most recent call last):
            ...
        padless.errors.PadlessError: missing.jsonl does not exist
    """
    if not inputs:
        raise PadlessError(f"no input was named; {_ACCEPTED}")
    found: list[Source] = []
    for item in [os.fspath(item) for item in inputs]:
        if not item:
            raise PadlessError("an input is the empty string; was a shell variable unset?")
        if item == "-":
            found.append(Source(name="-", path=_spool_stdin(), format=format or "jsonl"))
        elif Path(item).is_dir():
            found += _folder(Path(item), format, on_ignored)
        elif Path(item).exists() or not glob.has_magic(item):
            found += _files(item, [Path(item)], format)
        else:
            names = glob.glob(item, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
            matches = sorted(path for path in map(Path, names) if path.is_file())
            if not matches:
                raise PadlessError(f"no file matches {item}")
            found += _files(item, matches, format)
    _check_twice(found)
    return found


def _files(typed: str, paths: list[Path], format: Format | None) -> list[Source]:  # noqa: A002
    """Files that were named or globbed; text files among them become one source."""
    by_format: dict[Format, list[Path]] = {}
    if len(paths) == 1 and is_mask(paths[0]):
        raise PadlessError(f"{typed} is the mask of another pair, not tokens; name the pair, and its mask is read too")
    for path in paths:
        if is_mask(path):
            continue
        _check_readable(path)
        kind = format or _format_of(path)
        if kind is None:
            raise PadlessError(f"{path.as_posix()} has no format that its name tells; {_ACCEPTED}")
        by_format.setdefault(kind, []).append(path)
    found = [_one(path, kind) for kind in by_format if kind != "text" for path in by_format[kind]]
    if texts := by_format.get("text"):
        root = Path(os.path.commonpath([path.parent for path in texts]))
        files = tuple(path.relative_to(root).as_posix() for path in texts)
        found.append(Source(name=Path(typed).as_posix(), path=root, format="text", files=files))
    return found


def _folder(
    folder: Path,
    format: Format | None,  # noqa: A002
    on_ignored: Callable[[Path], None] | None,
) -> list[Source]:
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(path.name for path in folder.iterdir() if path.is_dir())
        raise PadlessError(
            f"{folder.as_posix()} holds several splits ({', '.join(splits)}); packing them together would mix them, "
            f"so name one, e.g. {(folder / splits[0]).as_posix() if splits else folder}"
        )
    if (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file():
        return _save_to_disk(folder)
    paths = _files_below(folder)
    by_format: dict[Format, list[Path]] = {}
    for path in paths:
        if is_mask(path) or (path.suffix == ".bin" and path.with_suffix(".idx").exists()):
            continue
        kind = format or data_format_of(path)
        if kind is not None:
            by_format.setdefault(kind, []).append(path)
        elif on_ignored is not None:
            on_ignored(path)
    if not by_format:
        raise PadlessError(f"{folder.as_posix()} is a folder without data; {_ACCEPTED}")
    if len(by_format) > 1:
        counts = ", ".join(f"{len(files)} {kind}" for kind, files in sorted(by_format.items()))
        raise PadlessError(
            f"{folder.as_posix()} mixes formats ({counts} files), which may hold the same records twice; "
            f"name those you mean with a glob"
        )
    [(kind, chosen)] = by_format.items()
    if kind == "text":
        files = tuple(path.relative_to(folder).as_posix() for path in chosen)
        return [Source(name=folder.as_posix(), path=folder, format="text", files=files)]
    for path in chosen:
        _check_readable(path)
    return [_one(path, kind) for path in chosen]


def _files_below(folder: Path) -> list[Path]:
    """Every visible file of a folder; stores that padless has written there are output, not input."""
    found = [path for path in sorted(folder.rglob("*")) if _visible(path, folder)]
    for path in found:
        if path.is_symlink() and not path.exists():
            raise PadlessError(f"{path.as_posix()} points to {path.readlink()}, which is not there; mend or remove it")
    stores = [path.parent for path in found if path.name in _STORE_FILES]
    if folder in stores:
        raise PadlessError(f"{folder.as_posix()} is a padless store already; `padless plan` makes other rows from it")
    return [path for path in found if path.is_file() and not any(path.is_relative_to(store) for store in stores)]


def _save_to_disk(folder: Path) -> list[Source]:
    """The Arrow files of a Hugging Face `save_to_disk` folder, in the data set's own order."""
    try:
        names = [entry["filename"] for entry in json.loads((folder / "state.json").read_bytes())["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PadlessError(f"{(folder / 'state.json').as_posix()} does not name its data files: {error!r}") from error
    paths = [folder / name for name in names]
    if not paths:
        raise PadlessError(f"{folder.as_posix()} is a data set without data files")
    for path in paths:
        _check_readable(path)
    return [_one(path, "arrow") for path in paths]


def _one(path: Path, kind: Format) -> Source:
    return Source(name=path.as_posix(), path=path, format=kind)


def _format_of(path: PurePath) -> Format | None:
    name = path.name.lower()
    packed = next((end for end in _PACKED if name.endswith(end)), "")
    kind = _FORMATS.get(Path(name.removesuffix(packed)).suffix)
    return None if packed and kind in ("parquet", "arrow", "indexed") else kind


def data_format_of(path: PurePath) -> Format | None:
    """The same in a folder, where files about the data lie beside it."""
    kind, name = _format_of(path), path.name.lower()
    is_about = name in _ABOUT_SETS or (kind == "text" and name.startswith(_ABOUT_DATA))
    return None if is_about else kind


def _visible(path: Path, folder: Path) -> bool:
    return not any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)


def _check_readable(path: Path) -> None:
    name = path.as_posix()
    if not path.exists():
        raise PadlessError(f"{name} does not exist")
    if not path.is_file():
        raise PadlessError(f"{name} is not a file that can be read twice; pipe it in as - (standard input)")
    if not os.access(path, os.R_OK):
        raise PadlessError(f"{name} cannot be read: permission denied")
    if path.stat().st_size == 0:
        raise PadlessError(f"{name} is empty")


def _check_twice(sources: list[Source]) -> None:
    seen: set[str] = set()
    for source in sources:
        for path in map(os.path.realpath, source.paths):
            if path in seen:
                raise PadlessError(f"{path} is named twice among the inputs; each record would be trained on twice")
            seen.add(path)


def _spool_stdin() -> Path:
    """Standard input as a file: it is hashed before it is read, and read again when a run resumes."""
    if sys.stdin.isatty():
        raise PadlessError("- reads JSON lines from standard input, which is a terminal here; pipe a file into it")
    handle, name = tempfile.mkstemp(prefix="padless-stdin-")
    atexit.register(Path(name).unlink, missing_ok=True)
    try:
        with os.fdopen(handle, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    except OSError as error:
        raise PadlessError(f"cannot keep standard input in {name}: {error.strerror or error}") from error
    if Path(name).stat().st_size == 0:
        raise PadlessError("standard input is empty")
    return Path(name)
