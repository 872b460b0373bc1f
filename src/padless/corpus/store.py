"""`TokenStore`: a folder of token shards and plans, opened without reading a token."""

import pickle
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from padless.corpus.documents import documents_of
from padless.corpus.lock import exclusive
from padless.corpus.manifest import (
    FORMAT,
    MANIFEST,
    Conventions,
    Counts,
    Encoding,
    Manifest,
    PlanEntry,
    SourceEntry,
    Versions,
    read_manifest,
    store_fingerprint,
)
from padless.corpus.sample import Sample
from padless.corpus.shard import Block, Shard, token_dtype
from padless.corpus.writer import SHARD_TOKENS, StoreWriter
from padless.durable import write_bytes
from padless.errors import PadlessError, ViolationError

if TYPE_CHECKING:
    from padless.planning import Plan

__all__ = ["TokenStore"]

SLICED_TOKENS = 128
"""Segments of at least this many tokens on average are copied one by one, shorter ones through an index."""


class TokenStore:
    """Packed data on disk: samples by number, segments by the batch, plans by capacity.

    Opening reads `manifest.json` and checks that the shards it names are there in full size; tokens are mapped when
    they are first used. A store pickles as its path, so that data loader workers (fork or spawn) reopen it for
    nothing; one that was replaced in between is refused.

    Args:
        path: The folder that `padless pack` wrote.

    Raises:
        PadlessError: When the folder is no finished store.
        ViolationError: When a shard is missing or has another size than the manifest says.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> store = TokenStore.write(folder, [[5, 6, 7], [8, 9]], vocab_size=50_000)
        >>> len(store), store.lengths.tolist(), store[1].input_ids.tolist()
        (2, [3, 2], [8, 9])
        >>> tokens, targets = store.gather([1, 0], starts=[0, 1], lengths=[2, 2])
        >>> tokens.tolist(), targets.tolist()
        ([8, 9, 6, 7], [False, True, False, True])
    """

    def __init__(self, path: str | Path) -> None:
        if "://" in str(path):
            raise PadlessError(
                f"{path}: tokens are mapped into memory, which needs a file system; copy the store first: "
                "padless.corpus.remote.download(url, folder)"
            )
        self.path = Path(path)
        self.manifest: Manifest = read_manifest(self.path)
        for entry in self.manifest.shards:
            _check_size(self.path / entry.name, entry.bytes)
        self._first_sample = np.cumsum([0, *(entry.samples for entry in self.manifest.shards)])
        self._open: dict[int, Shard] = {}
        self._documents: dict[int, list[str] | None] = {}

    @property
    def fingerprint(self) -> str:
        """Names the tokens and targets; equal fingerprints mean equal samples in equal order."""
        return self.manifest.fingerprint

    @cached_property
    def lengths(self) -> np.ndarray:
        """`int64[N]`: tokens of each sample, EOD included; read from the shards' offsets, never from tokens."""
        lengths = np.empty(len(self), np.int64)
        for index in range(len(self.manifest.shards)):
            first, end = self._first_sample[index : index + 2]
            lengths[first:end] = np.diff(self._shard(index).offsets)
        lengths.flags.writeable = False
        return lengths

    def __len__(self) -> int:
        return self.manifest.counts.samples

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        """Sample number `index` (views of the mapped file), or a list of them."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        sample_id = index + len(self) if index < 0 else index
        if not 0 <= sample_id < len(self):
            raise IndexError(f"sample {index} of a store of {len(self)} samples")
        shard, local = self._locate(sample_id)
        start, stop = shard.offsets[local : local + 2].tolist()
        return Sample(shard.tokens[start:stop], shard.targets_between(start, stop), sample_id)

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(len(self)))

    def gather(
        self,
        sample_ids: np.ndarray | list[int],
        starts: np.ndarray | list[int],
        lengths: np.ndarray | list[int],
        *,
        dtype: Any = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and targets of many segments, end to end, in one vectorised copy.

        Args:
            sample_ids: `int[S]`.
            starts: `int[S]`, first token of each segment inside its sample.
            lengths: `int[S]`, tokens of each segment.
            dtype: Type of the tokens; the store's own unless given. Another one is made in the same copy.

        Returns:
            `(tokens [T], targets bool[T])` with `T = sum(lengths)`. The first token of each segment is no
            target (nothing in the segment predicts it). Where the segments lie end to end in one shard already,
            `tokens` of the store's own type is a read-only view of the mapped file.

        Raises:
            PadlessError: When a segment reaches outside its sample.
        """
        ids, first, size = (np.asarray(values, np.int64) for values in (sample_ids, starts, lengths))
        self._check_segments(ids, first, size)
        wanted = np.dtype(self.manifest.encoding.dtype if dtype is None else dtype)
        home = np.searchsorted(self._first_sample, ids, side="right") - 1
        source = first.copy()
        for index in np.unique(home):
            here = home == index
            source[here] += self._shard(index).offsets[ids[here] - self._first_sample[index]]
        place = np.cumsum(size) - size
        if _is_one_run(home, source, size):
            shard, begin, end = self._shard(home[0]), int(source[0]), int(source[-1] + size[-1])
            tokens, targets = shard.tokens[begin:end].astype(wanted, copy=False), shard.targets_between(begin, end)
            targets = np.ones(len(tokens), np.bool_) if targets is None else targets
        else:
            tokens, targets = self._copy(home, source, size, wanted)
        targets[place[size > 0]] = False
        return tokens, targets

    def source_of(self, sample_id: int) -> tuple[str, int]:
        """The file that a sample came from, as it was named to `padless pack`, and its record number there.

        A text document is a file of its own; its number is its place among the documents that were named with it.
        """
        shard, local = self._locate(sample_id)
        source, record = int(shard.sources[local]), int(shard.records[local])
        if source not in self._documents:
            self._documents[source] = documents_of(self.path, self.manifest.documents, source)
        documents = self._documents[source]
        return self.manifest.sources[source].name if documents is None else documents[record - 1], record

    def plans(self) -> tuple[PlanEntry, ...]:
        """The plans saved beside the tokens, by capacity."""
        return self.manifest.plans

    def plan(self, capacity: int | None = None) -> "Plan":
        """The saved plan for `capacity`; the only one when there is only one.

        Raises:
            PadlessError: When there is none for that capacity, or several and no capacity is named.
            ViolationError: When its file is missing or is not the one the manifest lists.
        """
        from padless.planning import Plan

        entry = self._plan_entry(capacity)
        path = self.path / entry.name
        _check_size(path, entry.bytes)
        plan = Plan.load(path)
        if plan.fingerprint != entry.fingerprint:
            raise ViolationError(
                f"{path} is not the plan that {MANIFEST} lists; make it again with `padless plan {self.path}`"
            )
        return plan

    def add_plan(self, plan: "Plan") -> PlanEntry:
        """Save a plan as `plan-<capacity>.npz` and list it in the manifest, in place of one for the same capacity."""
        from padless.corpus.plans import save_plan

        if plan.pruning and not np.array_equal(plan.lengths, self.lengths[plan.sample_ids]):
            raise PadlessError(
                f"the plan was made of lengths pruned by {', '.join(plan.pruning)}, and the samples of {self.path} "
                "have others: rows would hold the wrong tokens; prune the source, pack it, and plan that store"
            )
        with exclusive(self.path):
            entry = save_plan(self.path, plan)
            self.manifest = read_manifest(self.path).with_plan(entry)
            write_bytes(self.path / MANIFEST, self.manifest.to_json())
        return entry

    @classmethod
    def write(
        cls,
        path: str | Path,
        samples: Iterable[Any],
        *,
        vocab_size: int,
        eod_id: int | None = None,
        shard_tokens: int = SHARD_TOKENS,
    ) -> "TokenStore":
        """Make a store from samples in memory: `Sample`s, or anything that becomes an array of token ids.

        Raises:
            PadlessError: When the folder is not empty or a token id is outside the vocabulary.
        """
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise PadlessError(f"{folder} is not empty; a new store needs a folder of its own")
        writer = StoreWriter(folder, dtype=token_dtype(vocab_size), shard_tokens=shard_tokens, eod_id=eod_id)
        for number, item in enumerate(samples):
            sample = item if isinstance(item, Sample) else Sample(np.asarray(item, np.int64))
            _check_vocabulary(sample, number, vocab_size)
            writer.append(_one(sample, number))
        writer.flush()
        shards = tuple(writer.shards)
        encoding = Encoding(
            shape="arrays",
            targets="given",
            eod=eod_id is not None,
            dtype=str(writer.dtype),
            shard_tokens=shard_tokens,
            on_bad_record="error",
        )
        manifest = Manifest(
            format=FORMAT,
            fingerprint=store_fingerprint(encoding, shards),
            versions=Versions.here(),
            sources=(SourceEntry(name="<arrays>", bytes=0, sha256=""),),
            tokenizer=None,
            encoding=encoding,
            packing=None,
            conventions=Conventions(),
            counts=Counts.of(shards),
            shards=shards,
        )
        write_bytes(folder / MANIFEST, manifest.to_json())
        return cls(folder)

    def __repr__(self) -> str:
        counts = self.manifest.counts
        return f"TokenStore({str(self.path)!r}: {counts.samples:,} samples, {counts.tokens:,} tokens)"

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "fingerprint": self.fingerprint}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"])
        if self.fingerprint != state["fingerprint"]:
            raise pickle.UnpicklingError(f"{self.path} was replaced by another store since this one was opened")

    def _shard(self, index: int) -> Shard:
        shard = self._open.get(index)
        if shard is None:
            shard = self._open[index] = Shard(self.path / self.manifest.shards[index].name)
        return shard

    def _locate(self, sample_id: int) -> tuple[Shard, int]:
        index = int(np.searchsorted(self._first_sample, sample_id, side="right")) - 1
        return self._shard(index), int(sample_id - self._first_sample[index])

    def _check_segments(self, ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> None:
        if not ids.shape == starts.shape == lengths.shape or ids.ndim != 1:
            raise PadlessError(
                f"segments are three arrays of one length; got {ids.shape}, {starts.shape}, {lengths.shape}"
            )
        if not len(ids):
            return
        if ids.min() < 0 or ids.max() >= len(self):
            raise PadlessError(f"sample ids {ids.min()}..{ids.max()} asked of a store of {len(self)} samples")
        outside = (starts < 0) | (lengths < 0) | (starts + lengths > self.lengths[ids])
        if outside.any():
            at = int(np.argmax(outside))
            raise PadlessError(
                f"tokens {starts[at]}..{starts[at] + lengths[at]} of sample {ids[at]}, "
                f"which has {self.lengths[ids[at]]}; the plan was made for another store"
            )

    def _copy(
        self, home: np.ndarray, source: np.ndarray, size: np.ndarray, dtype: np.dtype
    ) -> tuple[np.ndarray, np.ndarray]:
        homes = home.tolist()
        shards = {index: self._shard(index) for index in set(homes)}
        with_targets = [shard.target_bits is not None for shard in shards.values()]
        if int(size.sum()) <= SLICED_TOKENS * len(size) or any(with_targets) != all(with_targets):
            return self._copy_tokens(home, source, size, dtype)
        arrays = {index: shard.tokens for index, shard in shards.items()}
        tokens = _join(arrays, homes, source, source + size, dtype)
        if not any(with_targets):
            return tokens, np.ones(len(tokens), np.bool_)
        return tokens, _join_bits({index: shard.target_bits for index, shard in shards.items()}, homes, source, size)

    def _copy_tokens(
        self, home: np.ndarray, source: np.ndarray, size: np.ndarray, dtype: np.dtype
    ) -> tuple[np.ndarray, np.ndarray]:
        """Token by token through an index, with no Python work per segment, which short segments would drown in."""
        total, place = int(size.sum()), np.cumsum(size) - size
        tokens = np.empty(total, dtype)
        targets = np.ones(total, np.bool_)
        for index in np.unique(home):
            here = home == index
            shard = self._shard(index)
            read, write = _ranges(source[here], size[here]), _ranges(place[here], size[here])
            tokens[write] = shard.tokens[read]
            stored = shard.targets_at(read)
            if stored is not None:
                targets[write] = stored
        return tokens, targets

    def _plan_entry(self, capacity: int | None) -> PlanEntry:
        known = self.manifest.plans
        matches = [entry for entry in known if capacity in (None, entry.capacity)]
        if len(matches) == 1:
            return matches[0]
        have = ", ".join(str(entry.capacity) for entry in known) or "none"
        if capacity is None and known:
            raise PadlessError(f"{self.path} has plans for capacities {have}; say which")
        wanted = "M" if capacity is None else capacity
        raise PadlessError(
            f"{self.path} has no plan{'' if capacity is None else f' for capacity {capacity}'} (it has: {have}); "
            f"make one with `padless plan {self.path} --capacity {wanted}`"
        )


def _check_size(path: Path, expected: int) -> None:
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise ViolationError(f"{path} is missing; {MANIFEST} lists it") from None
    if found != expected:
        raise ViolationError(f"{path} has {found} bytes where {MANIFEST} says {expected}; it was cut or replaced")


def _check_vocabulary(sample: Sample, number: int, vocab_size: int) -> None:
    ids = sample.input_ids
    if len(ids) and (ids.min() < 0 or ids.max() >= vocab_size):
        raise PadlessError(
            f"sample {number} has token ids {ids.min()}..{ids.max()}, outside the vocabulary of {vocab_size}"
        )


def _one(sample: Sample, record: int) -> Block:
    return Block(
        tokens=sample.input_ids,
        lengths=np.array([len(sample)], np.int32),
        targets=sample.targets,
        sources=np.zeros(1, np.uint32),
        records=np.array([record], np.int64),
    )


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """`[s0, s0+1, .., s0+l0-1, s1, ..]`: the token positions of many segments."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)


def _join(arrays: dict[int, Any], homes: list[int], starts: np.ndarray, stops: np.ndarray, dtype: Any) -> np.ndarray:
    """Slices of arrays, end to end: one memory copy per segment, which long segments are worth."""
    spans = zip(homes, starts.tolist(), stops.tolist(), strict=True)
    return np.concatenate([arrays[home][start:stop] for home, start, stop in spans], dtype=dtype, casting="unsafe")


def _join_bits(arrays: dict[int, Any], homes: list[int], starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """`bool[T]`: the same for bits, lowest first, cut out by whole bytes and unpacked at once."""
    first, last = starts >> 3, (starts + lengths + 7) >> 3
    bits = np.unpackbits(_join(arrays, homes, first, last, np.uint8), bitorder="little")
    begins = (np.cumsum(last - first) - (last - first)) * 8 + (starts & 7)
    return _join({0: bits}, [0] * len(homes), begins, begins + lengths, np.uint8).view(np.bool_)


def _is_one_run(home: np.ndarray, source: np.ndarray, size: np.ndarray) -> bool:
    """Whether the segments lie end to end in one shard, in this order."""
    return bool(
        len(home) and home[0] == home[-1] and (home == home[0]).all() and (source[1:] == source[:-1] + size[:-1]).all()
    )
