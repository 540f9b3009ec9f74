"""The interface of an engine, which runs the operators of one host.

The overlay (`sbon.execution.operators`, migration) calls and imports nothing else of an engine. Both share an operator's record
(`Instance`): the overlay makes it and gives it links; the engine takes batches from its inputs, offers results to its outputs, and keeps
its figures (`Instance.figures`). Links, with their numbers, credit and epochs, belong to the overlay. So connecting or disconnecting an
operator only changes its record, and `consider` tells the engine to look again.

    instantiate -> [begin] -> consider, advance ... -> rest -> go_on | hand_over | destroy
    restore     -> activate -> ...

The engine reports what happens to operators through `sbon.execution.events.EngineEvents`, and changes their states as
`sbon.execution.life` says.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from sbon.execution.instance import Instance
from sbon.query.plan import OperatorSpec
from sbon.wire.deployment import TakenUp

if TYPE_CHECKING:
    from sbon.operators.operator import Operator


class Assembly(Protocol):
    """The state of one operator as it arrives in pieces. Its methods are called on executor threads, one at a time, in order."""

    @property
    def is_built(self) -> bool:
        """True once the state is complete; the pieces after that are input."""

    def load(self) -> None:
        """Loads the modules that the operator needs.

        Raises
        ------
        SbonError
            This host cannot run it.
        """

    def take(self, data: bytes) -> None:
        """Takes the next piece.

        Raises
        ------
        SbonError
            It is not the piece that was expected.
        """

    def finished(self) -> "tuple[Operator, bytes]":
        """Returns the operator, and the bytes of the overlay's record of it. Called after the last piece."""


class Engine(Protocol):
    """An engine runs the operators of one host. All calls are made on the event loop; callbacks come there too."""

    def expect(self) -> None:
        """Loads libraries for operators, if that takes a while: one that was lost with a former process is about to be made again."""

    def instantiate(self, instance: Instance, *, done: Callable[[BaseException | None], None], taken_up: TakenUp | None = None) -> None:
        """Makes the object that does an operator's work, and starts it; a sink starts at `begin`. `done` gets None, or the error.

        Parameters
        ----------
        taken_up : the point from which an operator goes on that is made again after a crash
        """

    def begin(self, instance: Instance) -> None:
        """Starts a sink. A repeated call does nothing."""

    def destroy(self, instance: Instance) -> None:
        """Stops an operator and frees all that it has. It has left the table of operators and has no links any more."""

    def consider(self, instance: Instance) -> None:
        """Looks at an operator again: it has new input, credit, outputs, or one output less."""

    def advance(self, instance: Instance, watermark_us: int) -> None:
        """Raises the watermark of an idle operator without a batch, and lets it give its answers."""

    def join(self, operator: Instance, multicast: Instance) -> None:
        """Starts a new multicast that has taken over outputs of an operator. Batches that the operator is at work on go through it."""

    def fail(self, instance: Instance, reason: str) -> None:
        """Fails an operator; its input stays unacknowledged."""

    def rest(self, instance: Instance, done: Callable[[BaseException | None], None]) -> None:
        """Pauses an operator after its current batch; `done` gets None, or the error. `go_on`, `hand_over` or `destroy` must follow."""

    def go_on(self, instance: Instance) -> None:
        """Lets an operator that rests, or is about to rest, run again."""

    def fork(self, instance: Instance, done: "Callable[[Operator | BaseException | None], None]") -> None:
        """Forks an operator between two batches; from then on its input is logged (`Instance.log`) until `end_log`.

        `done` gets the fork, the error, or None for an operator without state, which needs neither fork nor log.
        """

    def end_log(self, instance: Instance) -> None:
        """Stops logging input."""

    def snapshot(self, instance: Instance, done: Callable[[bytes | BaseException], None]) -> None:
        """Encodes the record of a resting operator: all that moves with it, except its state. `done` gets the bytes, or the error."""

    def assembly(self, spec: OperatorSpec) -> Assembly:
        """Returns an empty state for an operator on its way here."""

    def restore(self, assembly: Any, epoch: int, done: Callable[[Instance | BaseException], None]) -> None:
        """Makes a PREPARED operator from a state that has arrived; `activate` or `destroy` must follow."""

    def activate(self, instance: Instance) -> None:
        """Runs a PREPARED operator."""

    def hand_over(self, instance: Instance) -> None:
        """Frees an operator that runs on another host now."""
