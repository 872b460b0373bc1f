"""What a loader saves to resume, and the refusal to resume something else."""

import dataclasses
from typing import Any, Protocol

from padless.errors import PadlessError
from padless.training.epochs import EpochSpec, EpochSteps

FORMAT = "padless.row_sampler"
VERSION = 1


class Stateful(Protocol):
    """Anything that gives batches and remembers where it stands."""

    def __iter__(self) -> Any: ...
    def __len__(self) -> int: ...

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, in plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Go on from there."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Position:
    """`step` batches of `epoch` are behind us."""

    epoch: int = 0
    step: int = 0


class Cursor:
    """Where an iteration stands. A fresh one starts its epoch again, except the first after `go_to`.

    Attributes:
        position: What is behind us; never the end of an epoch, which is the start of the next.
    """

    def __init__(self) -> None:
        self.position = self._next = Position()

    def go_to(self, position: Position) -> None:
        """Let the next iteration begin here."""
        self.position = self._next = position

    def go_to_epoch(self, epoch: int) -> None:
        """Let the next iteration begin with this epoch, unless we are in it: a loaded position stays."""
        if epoch != self.position.epoch:
            self.go_to(Position(epoch=epoch))

    def begin(self) -> Position:
        """Begin an iteration."""
        self.position = self._next
        self._next = Position(epoch=self.position.epoch)
        return self.position

    def advance(self, num_steps: int) -> None:
        """One more batch is behind us, in an epoch of `num_steps`."""
        done = self.position.step + 1
        if done < num_steps:
            self.position = Position(epoch=self.position.epoch, step=done)
        else:
            self.go_to(Position(epoch=self.position.epoch + 1))


def save_state(
    *, store: str, plan: str, spec: EpochSpec, ranks: int, position: Position, epoch_steps: EpochSteps
) -> dict[str, Any]:
    """A small dictionary of plain values, good for JSON: what is read, in which order, and how far we are.

    `rows_done` says the position in rows of the epoch's order, so that another number of ranks can find its step.
    """
    return {
        "format": FORMAT,
        "version": VERSION,
        "store": store,
        "plan": plan,
        "spec": dataclasses.asdict(spec),
        "ranks": ranks,
        "epoch": position.epoch,
        "step": position.step,
        "rows_done": int(epoch_steps.step_offsets[position.step]),
    }


def check_state(state: dict[str, Any], *, store: str, plan: str, spec: EpochSpec) -> Position:
    """The position that a state holds, if it was made over the same store, plan and spec.

    Raises:
        PadlessError: Naming every difference with both values.
    """
    if state.get("format") != FORMAT or state.get("version") != VERSION:
        raise PadlessError(
            f"not a state of this sampler: format {state.get('format')!r} version {state.get('version')!r}, expected "
            f"{FORMAT!r} version {VERSION}; was it saved by another program or another version of padless?"
        )
    saved = {"store": state["store"], "plan": state["plan"], **state["spec"]}
    here = {"store": store, "plan": plan, **dataclasses.asdict(spec)}
    differences = [
        f"{name}: state has {saved.get(name)!r}, this sampler has {here.get(name)!r}"
        for name in dict.fromkeys([*saved, *here])
        if saved.get(name) != here.get(name)
    ]
    if differences:
        raise PadlessError(
            "this state belongs to another stream of rows, and going on from it would repeat some rows and skip "
            f"others. {'; '.join(differences)}. Give the sampler the saved values, or start anew without the state"
        )
    return Position(epoch=int(state["epoch"]), step=int(state["step"]))


def check_steps(state: dict[str, Any], epoch_steps: EpochSteps, *, ranks: int) -> None:
    """Refuse a position that this number of ranks does not have.

    Steps are the same for every number of ranks, but for the last two of an epoch that keeps its short last step.

    Raises:
        PadlessError: When the state's step does not end where the epoch's step ends.
    """
    step, rows_done = int(state["step"]), int(state["rows_done"])
    found = int(epoch_steps.step_offsets[step]) if step <= epoch_steps.num_steps else None
    if found != rows_done:
        raise PadlessError(
            f"the state stands after step {step} of epoch {state['epoch']} with {rows_done:,} rows read over "
            f"{state['ranks']} ranks; over {ranks} ranks that step ends at {found} rows, so no step fits. The last two "
            f"steps of an epoch depend on the number of ranks: resume this epoch with {state['ranks']} ranks"
        )
