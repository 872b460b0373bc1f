"""Pre-packed rows: several conversations in one buffer of `sequence_length`, the role of Megatron's SFTDataset."""

from pathlib import Path
from typing import Any

from padless.corpus import TokenStore
from padless.errors import PadlessError
from padless.frameworks.megatron.dataset import MegatronDataset


def prepacked(
    store: TokenStore | str | Path,
    sequence_length: int,
    *,
    pad_granularity: int = 1,
    eod_id: int | None = None,
    eod_loss: bool = True,
    **options: Any,
) -> MegatronDataset:
    """The rows of a store's plan, each padded to `sequence_length`; `dataset[i]` is one buffer as a `Batch`.

    Give `megatron_batch` to a loader as its `collate_fn`, or `Items(dataset, sft_item)` to Megatron's own loop. Where
    SFTDataset cuts a long conversation, drops those behind it and loses EOD, the plan's `oversize` policy decides, and
    its books count.

    Args:
        store: A store whose samples end with EOD, with a plan of capacity `sequence_length` and
            `align=pad_granularity`: `padless pack --capacity N --align A`, or `padless plan STORE ...`.
        sequence_length: Slots in a buffer.
        pad_granularity: Each conversation takes a multiple of this many slots: 2 * cp for context parallel.
        eod_id: As in `MegatronDataset`.
        eod_loss: As in `MegatronDataset`.
        **options: As in `PackedDataset`: `tokenizer`, `pad_id`, `loss_weights`, `static`, ...

    Raises:
        PadlessError: When the two lengths do not divide, or the plan was made for others.

    Example:
        >>> import tempfile
        >>> from padless import plan
        >>> from padless.frameworks.megatron import with_eod
        >>> store = TokenStore.write(tempfile.mkdtemp(), with_eod([[5, 6], [7]], 2), vocab_size=10, eod_id=2)
        >>> _ = store.add_plan(plan(store.lengths, 8, align=4))
        >>> buffer = prepacked(store, 8, pad_granularity=4, eod_id=2)[0]
        >>> sorted(buffer.lengths.tolist()), buffer.cu_seqlens_padded.tolist(), buffer.num_slots
        ([2, 3], [0, 4, 8], 8)
    """
    if sequence_length % pad_granularity:
        raise PadlessError(
            f"sequence_length={sequence_length} is no multiple of pad_granularity={pad_granularity}, so the last "
            f"conversation could not be cut into 2 * cp chunks; give "
            f"{-(-sequence_length // pad_granularity) * pad_granularity}"
        )
    dataset = MegatronDataset(store, sequence_length, eod_id=eod_id, eod_loss=eod_loss, pad_rows=True, **options)
    align = dataset.plan.spec.align
    if align % pad_granularity:
        raise PadlessError(
            f"the plan for {sequence_length} was made with align={align}: its conversations do not lie at multiples of "
            f"pad_granularity={pad_granularity}. Make one with `padless plan {dataset.store.path} --capacity "
            f"{sequence_length} --align {pad_granularity}`"
        )
    return dataset
