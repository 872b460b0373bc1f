"""What a store says of itself: everything that decided its bytes, and the hash of every file in it.

`manifest.json` is typed and versioned; a key that this version does not know is refused, because a reader that ignores
what it does not understand would train on something else than what was packed. It holds no time and no path of this
machine, so that equal work gives equal bytes.
"""

import hashlib
import platform
from importlib.metadata import version
from pathlib import Path

import msgspec

from padless.durable import sha256_of
from padless.errors import PadlessError, ViolationError

__all__ = [
    "FORMAT",
    "JOB",
    "MANIFEST",
    "Conventions",
    "Counts",
    "Encoding",
    "FileEntry",
    "Job",
    "Manifest",
    "Packing",
    "PlanEntry",
    "ShardEntry",
    "SourceEntry",
    "TokenizerEntry",
    "Versions",
    "read_manifest",
]

FORMAT = 1
MANIFEST = "manifest.json"
JOB = "job.json"  # there while a run is unfinished


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Frozen, and refuses keys it does not know."""


class FileEntry(_Entry, frozen=True, kw_only=True):
    """A file of the store."""

    name: str
    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "FileEntry":
        """Describe a file that is there, under its own name."""
        return FileEntry(name=path.name, bytes=path.stat().st_size, sha256=sha256_of(path))


class ShardEntry(FileEntry, frozen=True, kw_only=True):
    """A token shard and how much is in it."""

    samples: int
    tokens: int
    targets: int
    eod_tokens: int


class SourceEntry(_Entry, frozen=True, kw_only=True):
    """An input, as it was named, and the hash of its content."""

    name: str
    bytes: int
    sha256: str


class PlanEntry(FileEntry, frozen=True, kw_only=True, omit_defaults=True):
    """A saved plan: which rows, for which capacity, and by which rules visual tokens were taken away before."""

    capacity: int
    fingerprint: str
    pruning: tuple[str, ...] = ()


class TokenizerEntry(_Entry, frozen=True, kw_only=True):
    """Which tokenizer and chat template made the tokens."""

    name: str
    fingerprint: str
    vocab_size: int
    eod_id: int | None
    pad_id: int | None
    template_fingerprint: str | None
    files: tuple[FileEntry, ...] = ()


class Encoding(_Entry, frozen=True, kw_only=True, omit_defaults=True):
    """How records became tokens and targets."""

    shape: str
    targets: str
    eod: bool
    dtype: str
    shard_tokens: int
    on_bad_record: str
    part_bytes: int | None = None


class Conventions(_Entry, frozen=True, kw_only=True):
    """What every row made from this store means; a reader with other conventions must refuse."""

    labels: str = "unshifted; -100 where a token is not a target"
    targets: str = "never the first token of a segment, never padding"
    positions: str = "restart at 0 in each segment"
    attention: str = "inside a segment only"
    loss: str = "sum over targets / number of targets in the global batch"


class Packing(_Entry, frozen=True, kw_only=True):
    """The rows that were asked for together with the tokens; later plans are listed under `plans`."""

    capacity: int
    strategy: str
    align: int
    max_segments: int | None
    oversize: str
    seed: int


class Job(_Entry, frozen=True, kw_only=True):
    """What decides the bytes of a store: a run is continued only by a run of the same job."""

    format: int
    versions: "Versions"
    sources: tuple[SourceEntry, ...]
    tokenizer: TokenizerEntry | None
    encoding: Encoding
    packing: Packing | None

    def to_json(self) -> bytes:
        """The bytes of `job.json`."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


class Counts(_Entry, frozen=True, kw_only=True):
    """How much is in the store."""

    samples: int
    tokens: int
    targets: int
    eod_tokens: int
    rejected_records: int

    @classmethod
    def of(cls, shards: tuple[ShardEntry, ...], rejected_records: int = 0) -> "Counts":
        """The sums over the shards."""
        return cls(
            samples=sum(shard.samples for shard in shards),
            tokens=sum(shard.tokens for shard in shards),
            targets=sum(shard.targets for shard in shards),
            eod_tokens=sum(shard.eod_tokens for shard in shards),
            rejected_records=rejected_records,
        )


class Versions(_Entry, frozen=True, kw_only=True):
    """What wrote the store."""

    padless: str
    tokenizers: str
    pyarrow: str
    numpy: str
    python: str

    @classmethod
    def here(cls) -> "Versions":
        """The versions that run now."""
        return cls(
            padless=version("padless"),
            tokenizers=version("tokenizers"),
            pyarrow=version("pyarrow"),
            numpy=version("numpy"),
            python=".".join(platform.python_version_tuple()[:2]),
        )


class Manifest(_Entry, frozen=True, kw_only=True):
    """The content of `manifest.json`.

    `fingerprint` names the tokens and targets alone: it stays the same when a plan is added. `documents` are lists of
    names, one for each source that is a set of text files. `digest` is the hash of the manifest's own text without it,
    so that a changed character is noticed wherever it is.
    """

    format: int
    fingerprint: str
    versions: Versions
    sources: tuple[SourceEntry, ...]
    tokenizer: TokenizerEntry | None
    encoding: Encoding
    packing: Packing | None
    conventions: Conventions
    counts: Counts
    shards: tuple[ShardEntry, ...]
    rejected: FileEntry | None = None
    documents: tuple[FileEntry, ...] = ()
    plans: tuple[PlanEntry, ...] = ()
    digest: str = ""

    def to_json(self) -> bytes:
        """The bytes of `manifest.json`: equal manifests give equal bytes."""
        bare = msgspec.structs.replace(self, digest="")
        digest = hashlib.sha256(msgspec.json.encode(bare)).hexdigest()
        signed = msgspec.structs.replace(self, digest=digest)
        return msgspec.json.format(msgspec.json.encode(signed), indent=2) + b"\n"

    @property
    def job(self) -> Job:
        """The job that made this store."""
        return Job(**{name: getattr(self, name) for name in Job.__struct_fields__})

    def with_plan(self, entry: PlanEntry) -> "Manifest":
        """A manifest that lists `entry`, in place of a plan of the same file name if there was one."""
        others = [plan for plan in self.plans if plan.name != entry.name]
        plans = sorted([*others, entry], key=lambda plan: (plan.capacity, plan.name))
        return msgspec.structs.replace(self, plans=tuple(plans))


def store_fingerprint(encoding: Encoding, shards: tuple[ShardEntry, ...]) -> str:
    """The sha256 that names a store's tokens and targets."""
    digest = hashlib.sha256(f"padless store {FORMAT} {encoding.dtype}".encode())
    for shard in shards:
        digest.update(shard.sha256.encode())
    return digest.hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Read `folder/manifest.json`.

    Raises:
        PadlessError: When it is missing, is not a manifest, holds unknown keys, or has another format version.
        ViolationError: When it was changed after it was written.
    """
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise PadlessError(_no_manifest(folder)) from None
    try:
        found = msgspec.json.decode(data, type=_Version).format
        if found != FORMAT:
            raise PadlessError(
                f"{path} has format {found}, this padless reads format {FORMAT}; use the padless that wrote it"
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise ViolationError(f"{path} is not a manifest that this padless understands: {error}") from error
    if manifest.to_json() != data:
        raise ViolationError(
            f"{path} was changed after it was written: its text does not give its digest. Restore it, or pack again"
        )
    return manifest


def read_job(folder: Path) -> Job | None:
    """The job of an unfinished run in `folder`, None when there is none.

    Raises:
        PadlessError: When `job.json` is not one.
    """
    path = folder / JOB
    try:
        return msgspec.json.decode(path.read_bytes(), type=Job)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise PadlessError(
            f"{path} is not the job of an unfinished run that this padless understands ({error}); "
            f"choose another folder, or remove this one"
        ) from error


class _Version(msgspec.Struct):
    format: int


def _no_manifest(folder: Path) -> str:
    if not folder.exists():
        return f"{folder} does not exist; `padless pack INPUT --tokenizer T --capacity N -o {folder}` makes a store"
    if (folder / JOB).exists():
        return f"{folder} holds an unfinished run; run the same `padless pack` command again and it goes on"
    return f"{folder} is not a padless store: it has no {MANIFEST}"
