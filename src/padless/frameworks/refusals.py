"""What other people's formats cannot say, refused before it is lost."""

from padless.errors import PadlessError
from padless.rows import Batch


def refuse_padding(batch: Batch, dialect: str) -> None:
    """Raise unless every slot holds a real token: tables of rows say where segments end by their lengths alone."""
    if batch.num_slots != batch.num_tokens:
        raise PadlessError(
            f"{batch.num_slots - batch.num_tokens} of {batch.num_slots} slots are padding, which {dialect} rows would "
            "count as tokens of a segment; collate with align=1 and without capacity, pad_to_multiple or static"
        )


def refuse_ranks(batch: Batch, dialect: str) -> None:
    """Raise for a rule that lies in the batch: here only the model says whether it is causal."""
    if batch.rule.has_ranks or batch.rule.chunk is not None:
        raise PadlessError(
            f"{batch.rule} cannot be said in the {dialect} dialect, whose models are causal or bidirectional by their "
            "own configuration; use a kernel of padless.masks, or the plain dialect, which carries ranks"
        )


def refuse_media(batch: Batch, dialect: str) -> None:
    """Raise for a batch with images or videos: their placeholders would go on without what they stand for."""
    if batch.media is not None:
        raise PadlessError(
            f"the batch holds media ({', '.join(batch.media)}), which the {dialect} dialect has no place for: its "
            "placeholders would be trained on as text; use the plain or the Transformers dialect"
        )
