"""Rows in which every sample ends with EOD, and EOD is a target or not by its place, never by its id."""

import copy
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from padless.corpus import Sample, TokenStore
from padless.errors import PadlessError, ViolationError
from padless.planning import Plan
from padless.training import PackedDataset


class MegatronDataset(PackedDataset):
    """A `PackedDataset` with Megatron's promises about EOD.

    A sample's last token is EOD; that is checked on every row that is read. A piece that does not reach its sample's
    end (truncated, or split) has no EOD and gets none: an EOD there would teach the model to stop in mid-sentence.

    Args:
        store: A `TokenStore` whose samples end with EOD, or its folder. `padless pack` writes one unless told
            `--no-eod`; `TokenStore.write(folder, with_eod(samples, eod_id), eod_id=eod_id, ...)` does from memory.
        plan: Which segments share a row.
        eod_id: Its id; the store's tokenizer's own unless given.
        eod_loss: Whether the EOD that ends a sample is trained on. Other tokens of the same id, such as the end of
            each turn of a conversation, are left as they are.
        **options: As in `PackedDataset`.

    Raises:
        PadlessError: When the store's samples do not end with EOD, or nobody says which id it has.

    Example:
        >>> import tempfile
        >>> from padless import plan
        >>> samples = with_eod([[5, 6, 7], [8, 2, 9, 2]], eod_id=2)
        >>> store = TokenStore.write(tempfile.mkdtemp(), samples, vocab_size=10, eod_id=2)
        >>> dataset = MegatronDataset(store, plan(store.lengths, 8, strategy="next-fit"), eod_id=2, eod_loss=False)
        >>> dataset[0].input_ids.tolist(), dataset[0].labels.tolist()
        ([5, 6, 7, 2, 8, 2, 9, 2], [-100, 6, 7, -100, -100, 2, 9, -100])
    """

    def __init__(
        self,
        store: TokenStore | str | Path,
        plan: Plan | int | None = None,
        *,
        eod_id: int | None = None,
        eod_loss: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(store, plan, **options)
        self.eod_id = _eod_id(self.store, eod_id)
        self.eod_loss = eod_loss

    def laid_out(self, *, align: int, static: tuple[int, int] | None) -> "MegatronDataset":
        """The same rows with segments at multiples of another number of slots, and other static shapes."""
        other = copy.copy(self)
        other._options = self._options | {"align": align, "static": static}
        return other

    def _gather(self, sample_ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        tokens, targets = super()._gather(sample_ids, starts, lengths)
        whole = starts + lengths == self.store.lengths[sample_ids]
        ends = (np.cumsum(lengths) - 1)[whole]
        missing = np.flatnonzero(tokens[ends] != self.eod_id)
        if len(missing):
            raise ViolationError(
                f"sample {sample_ids[whole][missing[0]]} of {self.store.path} ends with token "
                f"{tokens[ends[missing[0]]]} and not with EOD ({self.eod_id}), though its store says that samples do; "
                f"the model would not learn to stop there. Write the store again, with_eod(samples, {self.eod_id})"
            )
        if not self.eod_loss:
            targets[ends] = False
        return tokens, targets


def with_eod(samples: Iterable[Any], eod_id: int) -> Iterator[Sample]:
    """Samples that end with exactly one EOD: added where it is missing, and where there are several one is kept.

    The EOD is a target where the sample's last token is one.

    Args:
        samples: `Sample`s, or anything that becomes an array of token ids.
        eod_id: The token.

    Raises:
        PadlessError: For a sample without tokens: EOD alone would be predicted from nothing.

    Example:
        >>> [sample.input_ids.tolist() for sample in with_eod([[5, 6], [7, 2], [7, 2, 2]], eod_id=2)]
        [[5, 6, 2], [7, 2], [7, 2]]
    """
    for number, item in enumerate(samples):
        sample = item if isinstance(item, Sample) else Sample(np.asarray(item, np.int64))
        ids, targets = sample.input_ids, sample.targets
        if not len(ids):
            raise PadlessError(f"sample {number} holds no tokens; leave it out and count it")
        others = np.flatnonzero(ids != eod_id)
        end = int(others[-1]) + 1 if len(others) else 0
        if targets is not None:
            ends_in_target = end > 0 and bool(targets[min(end, len(ids) - 1)])
            targets = np.append(targets[:end], ends_in_target)
        yield Sample(np.append(ids[:end].astype(np.int64), eod_id), targets, sample.sample_id)


def _eod_id(store: TokenStore, given: int | None) -> int:
    entry = store.manifest.tokenizer
    known = None if entry is None else entry.eod_id
    if not store.manifest.encoding.eod:
        raise PadlessError(
            f"the samples of {store.path} do not end with EOD (it was packed with --no-eod, or written without "
            "eod_id): the model would never learn to stop. Pack again with EOD, or write it with_eod(samples, eod_id)"
        )
    if given is None and known is None:
        raise PadlessError(f"{store.path} was written from arrays, and nobody says which id EOD has; pass eod_id=")
    if given is not None and known is not None and given != known:
        raise PadlessError(f"eod_id={given} and the samples of {store.path} end with {known}; leave eod_id out")
    return int(known if given is None else given)  # type: ignore[arg-type]
