"""Which segments share a row: the type that everything after planning reads."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from padless.errors import PadlessError
from padless.lengths import Accounting
from padless.lengths.files import read_arrays, write_arrays
from padless.planning.certificate import Certificate
from padless.planning.spec import PlanSpec

FORMAT = "padless.plan"
VERSION = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """Rows of segments, as CSR arrays; pure numbers that know nothing of text.

    Attributes:
        row_offsets: int64[R + 1]; the segments of row r are `row_offsets[r] : row_offsets[r + 1]`.
        sample_ids: int64[S], the sample each segment comes from.
        starts: int64[S], its first token inside the sample; 0 unless the sample is split.
        lengths: int32[S] (int64 where a length needs it), its tokens.
        spec: The settings that made it.
        certificate: Rows, lower bound, what proves it.
        accounting: Where the slots went, and every token that has none.
        fingerprint: Of lengths and spec; equal fingerprints mean equal plans.
        pruning: Rules that took visual tokens away before these lengths were counted; see `padless.rows.pruning`.

    Example:
        >>> from padless.planning import plan
        >>> p = plan([6, 4, 3, 7], capacity=10)
        >>> p.num_rows, p.num_segments, str(p.certificate)
        (2, 4, '2 rows, optimal: the bound L1 is met')
        >>> sorted(sorted(p.row(r)[2].tolist()) for r in range(p.num_rows))
        [[3, 7], [4, 6]]
    """

    row_offsets: np.ndarray
    sample_ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    spec: PlanSpec
    certificate: Certificate
    accounting: Accounting
    fingerprint: str
    pruning: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        segments = self.sample_ids.size
        shapes = {"sample_ids": self.sample_ids, "starts": self.starts, "lengths": self.lengths}
        for name, array in shapes.items():
            if array.shape != (segments,) or array.dtype.kind != "i":
                raise PadlessError(
                    f"a plan's {name} must be whole numbers [{segments}], not {array.dtype} {array.shape}"
                )
        offsets = self.row_offsets
        if offsets.ndim != 1 or offsets.size < 1 or offsets[0] != 0 or offsets[-1] != segments:
            raise PadlessError(f"a plan's row_offsets must run from 0 to its {segments} segments")
        for array in (offsets, *shapes.values()):
            array.flags.writeable = False

    @property
    def capacity(self) -> int:
        """Slots per row."""
        return self.spec.capacity

    @property
    def num_rows(self) -> int:
        """R."""
        return self.row_offsets.size - 1

    @property
    def num_segments(self) -> int:
        """S."""
        return self.sample_ids.size

    def row(self, r: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The segments of row r: `(sample_ids, starts, lengths)`, views into the plan."""
        if not 0 <= r < self.num_rows:
            raise PadlessError(f"row {r} of a plan of {self.num_rows:,} rows (0 to {self.num_rows - 1})")
        part = slice(int(self.row_offsets[r]), int(self.row_offsets[r + 1]))
        return self.sample_ids[part], self.starts[part], self.lengths[part]

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        return (
            f"Plan({self.spec.strategy}, capacity {self.capacity:,}: {self.certificate}, "
            f"{self.accounting.efficiency:.2%} efficient)"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        arrays = ("row_offsets", "sample_ids", "starts", "lengths")
        return (
            self.fingerprint == other.fingerprint
            and self.pruning == other.pruning
            and self.spec == other.spec
            and self.certificate == other.certificate
            and self.accounting == other.accounting
            and all(np.array_equal(getattr(self, name), getattr(other, name)) for name in arrays)
        )

    def save(self, path: str | Path) -> None:
        """Write the plan to one `.npz`. Equal plans give equal bytes; a reader never sees half a file."""
        arrays = {
            "widths": _narrow(np.diff(self.row_offsets)),
            "sample_ids": _narrow(self.sample_ids),
            "lengths": _narrow(self.lengths),
        }
        if self.starts.any():
            arrays["starts"] = _narrow(self.starts)
        header = {
            "format": FORMAT,
            "version": VERSION,
            "spec": self.spec.to_dict(),
            "certificate": asdict(self.certificate),
            "accounting": asdict(self.accounting),
            "fingerprint": self.fingerprint,
        }
        if self.pruning:
            header["pruning"] = list(self.pruning)
        write_arrays(Path(path), arrays, json.dumps(header, sort_keys=True))

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Read what `save` wrote; no pickle is involved.

        Raises:
            PadlessError: Missing, damaged, not a plan, or of another version.
        """
        arrays, header = read_arrays(Path(path), FORMAT, VERSION)
        try:
            lengths = arrays["lengths"]
            return cls(
                row_offsets=np.concatenate([[0], np.cumsum(arrays["widths"], dtype=np.int64)]),
                sample_ids=arrays["sample_ids"].astype(np.int64),
                starts=arrays["starts"].astype(np.int64) if "starts" in arrays else np.zeros(lengths.size, np.int64),
                lengths=lengths.astype(length_dtype(header["spec"]["capacity"])),
                spec=PlanSpec.from_dict(header["spec"]),
                certificate=Certificate(**header["certificate"]),
                accounting=Accounting(**header["accounting"]),
                fingerprint=header["fingerprint"],
                pruning=tuple(header.get("pruning", ())),
            )
        except (KeyError, TypeError, IndexError) as error:
            raise PadlessError(f"{path} is not a whole plan ({error!r}); plan again") from error


def length_dtype(capacity: int) -> type:
    """The dtype of segment lengths: int32 wherever a row fits it."""
    return np.int32 if capacity < 1 << 31 else np.int64


def _narrow(array: np.ndarray) -> np.ndarray:
    """The smallest unsigned dtype that holds the values: a function of the values alone."""
    largest = int(array.max()) if array.size else 0
    for dtype in (np.uint8, np.uint16, np.uint32):
        if largest <= np.iinfo(dtype).max:
            return array.astype(dtype)
    return array.astype(np.uint64)
