"""Where the slots go: real tokens, and waste by its cause."""

from dataclasses import dataclass
from typing import Any

from padless.errors import PadlessError
from padless.lengths.histogram import LengthHistogram


@dataclass(frozen=True, kw_only=True)
class Accounting:
    """Every slot of a set of rows, and every token that did not get one.

    `slots = real_tokens + tail_padding + alignment_padding + batch_padding` always holds. EOD tokens are real tokens
    and counted inside them; truncated and dropped tokens stand beside the slots, never among them.

    Attributes:
        samples: Samples given, placed or not.
        segments: Contiguous pieces placed; equals the samples placed unless some were split.
        rows: Rows of `capacity` slots.
        capacity: Slots per row.
        real_tokens: Slots that hold a token of a sample.
        tail_padding: Slots after a row's last segment.
        alignment_padding: Slots between a segment's last token and the next multiple of `align`.
        batch_padding: Slots added to make a batch rectangular; a plan has none.
        truncated_samples: Samples cut short by the policy `truncate`.
        truncated_tokens: Their tokens that are not in any row.
        dropped_samples: Samples left out by the policy `drop`.
        dropped_tokens: Their tokens.
        split_samples: Samples in more than one segment.
        eod_tokens: Real tokens that mark the end of a sample, where the caller knows them.
        sum_squares: Sum of length**2 over segments.
        segments_per_row_max: The most segments any row holds.

    Example:
        >>> before = Accounting.padded([2048, 512, 256, 128], 2048)
        >>> before.slots, before.padding, f"{before.waste_rate:.1%}", before.ceil_bound
        (8192, 5248, '64.1%', 2)
    """

    samples: int
    segments: int
    rows: int
    capacity: int
    real_tokens: int
    tail_padding: int
    alignment_padding: int = 0
    batch_padding: int = 0
    truncated_samples: int = 0
    truncated_tokens: int = 0
    dropped_samples: int = 0
    dropped_tokens: int = 0
    split_samples: int = 0
    eod_tokens: int = 0
    sum_squares: int
    segments_per_row_max: int

    def __post_init__(self) -> None:
        negative = [name for name, value in vars(self).items() if value < 0]
        if negative:
            raise PadlessError(f"accounting: {', '.join(negative)} below zero")
        if self.real_tokens + self.padding != self.slots:
            raise PadlessError(
                f"accounting does not add up: {self.rows} rows x {self.capacity} = {self.slots} slots, but "
                f"{self.real_tokens} real + {self.padding} padding = {self.real_tokens + self.padding}"
            )

    @classmethod
    def padded(cls, lengths: Any, capacity: int) -> "Accounting":
        """The books of fixed-length training: every sample padded to `capacity`, one per row."""
        histogram = lengths if isinstance(lengths, LengthHistogram) else LengthHistogram.of(lengths)
        if histogram.longest > capacity:
            raise PadlessError(f"a sample of {histogram.longest:,} tokens cannot be padded to {capacity:,}")
        return cls(
            samples=histogram.samples,
            segments=histogram.samples,
            rows=histogram.samples,
            capacity=capacity,
            real_tokens=histogram.tokens,
            tail_padding=histogram.samples * capacity - histogram.tokens,
            sum_squares=histogram.sum_squares,
            segments_per_row_max=1,
        )

    def one_per_row(self) -> "Accounting":
        """The books of the same segments, each padded to a row of its own: what packing is set against."""
        return Accounting(
            samples=self.segments,
            segments=self.segments,
            rows=self.segments,
            capacity=self.capacity,
            real_tokens=self.real_tokens,
            tail_padding=self.segments * self.capacity - self.real_tokens,
            eod_tokens=self.eod_tokens,
            sum_squares=self.sum_squares,
            segments_per_row_max=1,
        )

    @property
    def slots(self) -> int:
        """Rows times capacity."""
        return self.rows * self.capacity

    @property
    def padding(self) -> int:
        """Slots without a real token, all causes together."""
        return self.tail_padding + self.alignment_padding + self.batch_padding

    @property
    def waste_rate(self) -> float:
        """Padding as a fraction of slots."""
        return self.padding / self.slots if self.slots else 0.0

    @property
    def efficiency(self) -> float:
        """Real tokens as a fraction of slots; Krell et al. call it packing efficiency."""
        return self.real_tokens / self.slots if self.slots else 0.0

    @property
    def packing_factor(self) -> float:
        """Placed samples per row; Krell et al. 2021, section 2."""
        return (self.samples - self.dropped_samples) / self.rows if self.rows else 0.0

    @property
    def ceil_bound(self) -> int:
        """ceil(tokens / capacity): the fewest rows that tokens alone allow; it may not be reachable."""
        return -(-self.real_tokens // self.capacity)

    @property
    def padded_score_elements(self) -> float:
        """Half the square of every row: what a dense causal kernel scores."""
        return self.rows * self.capacity**2 / 2

    @property
    def score_elements(self) -> float:
        """Half the square of every segment: the causal scores that are needed, diagonal split evenly.

        The convention of hand calculations, n**2 / 2; `strict_score_elements` leaves the diagonal out exactly.
        """
        return self.sum_squares / 2

    @property
    def strict_score_elements(self) -> int:
        """Query-key pairs below the diagonal, exactly: n (n - 1) / 2 over segments."""
        return (self.sum_squares - self.real_tokens) // 2
