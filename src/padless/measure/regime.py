"""Which regime a model is in at given lengths, and what each remedy would still give.

Where projections and MLP take the time, a step costs what its tokens cost: removing padding saves the padding's share,
and so does every shorter sequence. Where attention takes it, padding costs more than its share, and shortening
sequences saves more than it removes.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from padless.lengths import as_lengths
from padless.measure.cost import CostModel
from padless.measure.workloads import bucketed, dynamic, packed, padded

PRUNED = 0.25  # of every sample: half of the tokens are an image's, and half of those are dropped


@dataclass(frozen=True, kw_only=True)
class Regime:
    """What bounds a step, by the cost model.

    Attributes:
        name: What takes most of a step that has no padding.
        attention_padded: Attention's share of the time of fixed-length rows, 0 to 1.
        attention_real: Its share when only real tokens are computed.
        crossover: Length from which attention costs more than everything else, in tokens.
        padding: Of the fixed-length rows.
        batching: Time saved against fixed length by padding each batch to its longest.
        bucketing: By batching samples of similar length as well.
        packing: By packing.
        pruning: Time saved against the packed step when every sample is a quarter shorter.
    """

    name: Literal["projections", "attention"]
    attention_padded: float
    attention_real: float
    crossover: float
    padding: float
    batching: float
    bucketing: float
    packing: float
    pruning: float

    def advice(self) -> tuple[str, ...]:
        """What the numbers mean, a sentence each, largest lever first."""
        ways = [
            (self.packing, "packing"),
            (self.bucketing, "batching samples of similar length"),
            (self.batching, "padding each batch to its own longest"),
        ]
        ways.sort(key=lambda way: -way[0])
        said = [f"{name} takes {_change(saved)} time than fixed-length rows" for saved, name in ways]
        more = "more than it removes" if self.pruning > PRUNED + 0.02 else "about what it removes"
        said.append(
            f"after packing, making every sample {PRUNED:.0%} shorter takes {_change(self.pruning)} time, {more}; "
            f"attention is {self.attention_real:.0%} of what is left"
        )
        return tuple(said)


def regime(cost: CostModel, lengths: Any, *, length: int, batch: int, capacity: int) -> Regime:
    """Which regime these lengths are in.

    Args:
        cost: Fitted on this machine.
        lengths: Tokens of each sample.
        length: What fixed-length rows are padded to.
        batch: Samples of a padded micro-batch.
        capacity: Tokens of a packed row.

    Example:
        >>> cost = CostModel(constant=0.0, linear=1.0, quadratic=0.01)
        >>> found = regime(cost, [50, 100, 50, 100], length=400, batch=2, capacity=400)
        >>> found.name, round(found.packing, 3), round(found.attention_padded, 2)
        ('projections', 0.931, 0.8)
    """
    sizes = as_lengths(lengths).astype(np.int64)
    fixed = padded(sizes, length=length, batch=batch)
    rows = packed(sizes, capacity=capacity)
    before, after = cost.of(fixed), cost.of(rows)
    shorter = np.maximum((sizes * (1 - PRUNED)).astype(np.int64), 1)
    real = cost.attention_share(tokens=rows.slots, sum_squares=rows.sum_squares)
    return Regime(
        name="attention" if real > 0.5 else "projections",
        attention_padded=cost.attention_share(tokens=fixed.slots, sum_squares=fixed.sum_squares),
        attention_real=real,
        crossover=cost.crossover,
        padding=fixed.padding,
        batching=1 - cost.of(dynamic(sizes, batch=batch)) / before,
        bucketing=1 - cost.of(bucketed(sizes, batch=batch)) / before,
        packing=1 - after / before,
        pruning=1 - cost.of(packed(shorter, capacity=capacity)) / after,
    )


def _change(saved: float) -> str:
    return f"{abs(saved):.1%} {'less' if saved >= 0 else 'more'}"
