"""Megatron's `.idx` files: how long each sequence of a `.bin` is and where it begins. Little-endian, written by

    "MMIDIDX" 0 0 | u64 version = 1 | u8 dtype code | u64 sequences S | u64 documents + 1 D
    int32 lengths[S] | int64 byte pointers[S] | int64 first sequence of each document, then S [D] | int8 modes[S]

The modes are there only in multimodal files. Tokens lie in the `.bin`, back to back.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from padless.errors import PadlessError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPE_CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}
_NAMES = {code: name for name, code in DTYPE_CODES.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class Index:
    """What an `.idx` file says.

    Attributes:
        dtype: Type of the tokens in the `.bin`, little-endian.
        lengths: int32[S], tokens of each sequence.
        pointers: int64[S], the byte of the `.bin` at which each begins.
        documents: int64[D + 1], the first sequence of each document, then S.
        modes: int8[S] of multimodal files, else None.
    """

    dtype: np.dtype
    lengths: np.ndarray
    pointers: np.ndarray
    documents: np.ndarray
    modes: np.ndarray | None

    def __len__(self) -> int:
        return len(self.lengths)


def read_index(path: Path) -> Index:
    """Read and check an `.idx` file; its arrays are views of the mapped file.

    Raises:
        PadlessError: When it is missing, cut short or damaged, or its `.bin` is missing or holds fewer tokens.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(HEADER.size)
        tokens = bin_of(path).stat().st_size
    except OSError as error:
        raise PadlessError(f"cannot read {error.filename}: {error.strerror}; an .idx and a .bin go together") from error
    header = HEADER.unpack(head) if len(head) == HEADER.size else None
    if header is None or header[0] != MAGIC or header[1] != VERSION or header[2] not in _NAMES:
        raise PadlessError(f"{path} is no .idx file of Megatron, version {VERSION}: its first bytes are {header}")
    dtype = np.dtype(_NAMES[header[2]]).newbyteorder("<")
    sequences, documents = header[3:]
    plain = HEADER.size + 12 * sequences + 8 * documents
    if size not in (plain, plain + sequences):
        raise PadlessError(
            f"{path} has {size:,} bytes, and {sequences:,} sequences in {documents - 1:,} documents take {plain:,}: it "
            "is cut short or damaged"
        )
    raw = np.memmap(path, np.uint8, "r")
    lengths, rest = raw[HEADER.size : HEADER.size + 4 * sequences], raw[HEADER.size + 4 * sequences :]
    index = Index(
        dtype=dtype,
        lengths=lengths.view("<i4"),
        pointers=rest[: 8 * sequences].view("<i8"),
        documents=rest[8 * sequences : 8 * (sequences + documents)].view("<i8"),
        modes=raw[plain:].view(np.int8) if size > plain else None,
    )
    _check(path, index, tokens)
    return index


def bin_of(path: Path) -> Path:
    """The `.bin` of an `.idx`."""
    return path.with_suffix(".bin")


def _check(path: Path, index: Index, tokens: int) -> None:
    documents = index.documents
    if not len(documents) or documents[0] != 0 or documents[-1] != len(index) or (np.diff(documents) < 0).any():
        raise PadlessError(f"{path} is damaged: its documents do not run from sequence 0 to {len(index):,}")
    if not len(index):
        return
    ends = index.pointers + index.lengths.astype(np.int64) * index.dtype.itemsize
    wrong = (index.lengths < 0) | (index.pointers < 0) | (ends > tokens) | (index.pointers % index.dtype.itemsize != 0)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise PadlessError(
            f"sequence {at} of {path} lies at bytes {index.pointers[at]:,} to {ends[at]:,} and {bin_of(path).name} has "
            f"{tokens:,}: one of the two is cut short, damaged, or belongs to another"
        )
