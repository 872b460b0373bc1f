"""A `DataLoader` that knows which batches have arrived, so that its state is exact with workers too."""

from collections.abc import Callable, Iterator
from typing import Any

from padless.errors import require
from padless.rows import Batch
from padless.training.dataset import PackedDataset
from padless.training.media_dataset import MediaDataset
from padless.training.sampler import RowSampler
from padless.training.state import Cursor


class PackedLoader:
    """Batches of a `PackedDataset` in the order of a `RowSampler`, read ahead by workers, resumable after any batch.

    A `DataLoader` with workers asks its sampler for batches long before the training loop sees them. This loader
    counts what it handed out, so `state_dict()` never skips a batch that was read ahead. The state says nothing of
    workers: resume with another number of them. Lightning saves and restores it by itself; with Accelerate and the
    HF Trainer see docs/rows.md.

    Args:
        sampler: Which rows when; it knows the dataset.
        collate_fn: What becomes of each `Batch`: a dialect of `padless.frameworks`, or None for torch tensors.
        num_workers: Processes that read ahead; 0 reads in this one.
        options: Further arguments of `torch.utils.data.DataLoader`, e.g. `pin_memory`, `multiprocessing_context`.

    Raises:
        MissingExtraError: When torch is not installed.

    Example:
        >>> import tempfile
        >>> from padless import TokenStore, plan
        >>> store = TokenStore.write(tempfile.mkdtemp(), [[5, 6, 7], [8, 9], [1, 2, 3]], vocab_size=10)
        >>> dataset = PackedDataset(store, plan=plan(store.lengths, 5))
        >>> loader = PackedLoader(RowSampler(dataset, rows=1, drop_last=False))
        >>> next(iter(loader)).input_ids.dtype
        torch.int64
        >>> loader.state_dict()["step"]
        1
    """

    def __init__(
        self,
        sampler: RowSampler,
        *,
        collate_fn: Callable[[Batch], Any] | None = None,
        num_workers: int = 0,
        **options: Any,
    ) -> None:
        require("torch", extra="torch", feature="PackedLoader")
        from torch.utils.data import DataLoader

        self.sampler = sampler
        self._loader = DataLoader(
            sampler.dataset,  # type: ignore[arg-type]
            batch_sampler=sampler,
            collate_fn=collate_fn or Batch.torch,  # type: ignore[arg-type]
            num_workers=num_workers,
            **options,
        )
        self._cursor = Cursor()

    @property
    def dataset(self) -> PackedDataset | MediaDataset:
        """The rows."""
        return self.sampler.dataset

    def __len__(self) -> int:
        """Batches per epoch and rank."""
        return self.sampler.epoch_steps(self._cursor.position.epoch).num_steps

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch, unless we are in it already (a loaded state stays)."""
        self._cursor.go_to_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        start = self._cursor.begin()
        self.sampler.go_to(start)
        num_steps = self.sampler.epoch_steps(start.epoch).num_steps
        for batch in self._loader:
            self._cursor.advance(num_steps)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Where the training loop stands, in plain values."""
        return self.sampler.state_at(self._cursor.position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was saved; see `RowSampler.load_state_dict`."""
        self._cursor.go_to(self.sampler.load_state_dict(state))
