"""Arrays and a JSON header in one `.npz`: same content, same bytes; written whole or not at all; no pickle."""

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from padless.durable import atomic_path
from padless.errors import PadlessError

HEADER = "header.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date a zip can hold; a clock would make equal plans differ
_CHUNK = 1 << 20  # values written at a time


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], header: str) -> None:
    """Write `arrays` and `header` to `path`, replacing it in one step when everything is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as scratch, zipfile.ZipFile(scratch, "w", zipfile.ZIP_STORED) as archive:
        _write_member(archive, HEADER, header.encode())
        for name, array in arrays.items():
            _write_array(archive, f"{name}.npy", array)


def read_arrays(path: Path, kind: str, version: int) -> tuple[dict[str, np.ndarray], dict]:
    """Read what `write_arrays` wrote: arrays by name, and the header.

    Raises:
        PadlessError: The file is missing, damaged (every byte is under a checksum), of another kind, or newer.
    """
    if not path.is_file():
        raise PadlessError(f"{path} is not a file; expected a {kind} .npz")
    try:
        with zipfile.ZipFile(path) as archive:
            if HEADER not in archive.namelist():
                raise PadlessError(f"{path} is not a {kind} file: it has no {HEADER}")
            header = json.loads(archive.read(HEADER))
            _check_header(path, header, kind, version)
            arrays = {
                name.removesuffix(".npy"): np.lib.format.read_array(io.BytesIO(archive.read(name)), allow_pickle=False)
                for name in archive.namelist()
                if name != HEADER
            }
    except PadlessError:
        raise
    except (zipfile.BadZipFile, ValueError, EOFError, KeyError, OSError, NotImplementedError) as error:
        raise PadlessError(f"{path} is damaged ({error}); make it again") from error
    return arrays, header


def _check_header(path: Path, header: object, kind: str, version: int) -> None:
    if not isinstance(header, dict) or header.get("format") != kind:
        found = header.get("format") if isinstance(header, dict) else header
        raise PadlessError(f"{path} holds {found!r}; expected {kind!r}")
    if header.get("version") != version:
        raise PadlessError(
            f"{path} is version {header.get('version')!r} of {kind}; this padless reads version {version}: "
            "make the file again, or install the padless that wrote it"
        )


def _write_member(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    archive.writestr(_info(name), data)


def _write_array(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(little))
    with archive.open(_info(name), "w", force_zip64=True) as member:
        member.write(head.getvalue())
        for start in range(0, little.size, _CHUNK):
            member.write(little[start : start + _CHUNK].tobytes())


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, date_time=_EPOCH)
    info.create_system = 3  # as on Unix, wherever it runs
    info.external_attr = 0o644 << 16
    return info
