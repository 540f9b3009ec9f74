"""The shells of all operators on their way to this host: pass events to each newcomer's machine, and carry out its actions."""

from collections.abc import Callable
from functools import partial

from sbon.errors import MigrationError, PlacementError, SbonError
from sbon.execution.instance import Instance
from sbon.migration import newcomer
from sbon.migration.latecomers import check_prepare, check_unexpected_piece, check_unexpected_word
from sbon.migration.newcomer import Newcomer, Stage
from sbon.migration.parts import Parts
from sbon.migration.sending import metered
from sbon.peers.directory import Done
from sbon.shell import Shell
from sbon.types import NodeId, OperatorId
from sbon.wire.messages import Done as DoneMessage
from sbon.wire.messages import Message
from sbon.wire.migration import Activate, Outcome, OutcomeAsk, Prepare, StateChunk

Event = Callable[[float], list[newcomer.Action]]


class Arrival:
    """One operator on its way here."""

    def __init__(self, parts: Parts, asked: Prepare, bytes_max: int, ended: Callable[["Arrival"], None]) -> None:
        self.machine = Newcomer(asked, bytes_max, parts.config, parts.host.now())
        self.assembly = parts.engine.assembly(asked.spec)
        self._parts = parts
        self._ended = ended
        self._shell = Shell(parts.host, self.machine, self._perform)
        self._prepared: Done | None = None
        self._waiting: dict[int, Done] = {}

    def begin(self, respond: Done) -> None:
        """Starts to expect the state."""
        self._prepared = respond
        self._shell.do(self.machine.start())

    def prepare_again(self, respond: Done) -> None:
        """Answers the same request once more."""
        self._prepared = respond
        self.happens(self.machine.prepared_again)

    def chunk(self, message: StateChunk, respond: Done) -> None:
        """Takes a piece; `respond` follows when it has been applied."""
        wanted = self.machine.piece(message, self._parts.host.now())
        self._waiting[message.index] = respond
        self._shell.do(wanted)

    def happens(self, event: Event) -> None:
        """Passes an event to the machine."""
        self._shell.do(event(self._parts.host.now()))

    def close(self) -> None:
        """Cancels the timer."""
        self._shell.close()

    def _perform(self, action: newcomer.Action) -> None:
        parts, operator = self._parts, self.machine.operator
        match action:
            case newcomer.Load(feeds):
                # The operator's libraries are loaded and its consumers' hosts connected before the operator pauses.
                respond, self._prepared = self._prepared, None
                assert respond is not None
                parts.host.execute(self.assembly.load, partial(self._loaded, feeds, respond), rows=0)
            case newcomer.Take(data):
                parts.host.execute(partial(metered, parts.host, partial(self.assembly.take, data)), self._taken, rows=0)
            case newcomer.Install():
                parts.operators.restore(self.assembly, self.machine.epoch, lambda: self.machine.stage is Stage.INSTALLING, self._installed)
            case newcomer.Answer(index):
                self._waiting.pop(index)(DoneMessage())
            case newcomer.KeepRoom():
                parts.operators.room.reserve(operator, 1, parts.host.now())
            case newcomer.Reach(feeds):
                parts.directory.reach(feeds, lambda problem: None)
            case newcomer.AskOutcome(coordinator):
                ask = OutcomeAsk(operator=operator, epoch=self.machine.epoch)
                parts.directory.request(coordinator, ask, self._heard)
            case newcomer.Run():
                self._ended(self)
            case newcomer.Drop(reason):
                parts.operators.room.reservations.end(operator)
                self._ended(self)
                for respond in self._waiting.values():
                    respond(MigrationError(f"the move of operator {operator} was called off while its state came: {reason}"))
                self._waiting.clear()
            case newcomer.Remove():
                parts.operators.destroy(operator)

    def _loaded(self, feeds: tuple[NodeId, ...], respond: Done, result: object) -> None:
        if isinstance(result, BaseException):
            respond(result if isinstance(result, SbonError) else MigrationError(_reason(result)))
        else:
            self._parts.directory.reach(feeds, lambda problem: respond(problem or DoneMessage()))

    def _taken(self, result: tuple[None, float] | BaseException) -> None:
        if isinstance(result, BaseException):
            self._not_taken(result)
        else:
            self.happens(lambda now: self.machine.taken(result[1], now, is_built=self.assembly.is_built))

    def _installed(self, result: Instance | BaseException) -> None:
        if isinstance(result, BaseException):
            self._not_taken(result)
        else:
            self.happens(self.machine.installed)

    def _not_taken(self, problem: BaseException) -> None:
        self.happens(lambda now: self.machine.not_taken(_reason(problem), now))

    def _heard(self, result: Message | SbonError) -> None:
        if isinstance(result, Outcome):
            self.happens(lambda now: self.machine.verdict(result.verdict, now))


class Arrivals:
    """All operators on their way here."""

    def __init__(self, parts: Parts, activated: Callable[[Instance], None]) -> None:
        self._parts = parts
        self._activated = activated
        self._arriving: dict[OperatorId, Arrival] = {}

    def __contains__(self, operator: OperatorId) -> bool:
        return operator in self._arriving

    def __len__(self) -> int:
        return len(self._arriving)

    def coordinator(self, operator: OperatorId) -> tuple[NodeId, int] | None:
        """Returns the host that moves an operator here and the epoch of the move; None if the operator is not on its way."""
        found = self._arriving.get(operator)
        return None if found is None else (found.machine.coordinator, found.machine.epoch)

    def prepare(self, message: Prepare, respond: Done, *, is_leaving: bool) -> None:
        """Reserves room for an operator; `respond` follows when its state may be sent.

        Raises
        ------
        SbonError
            There is no room, or the operator is here.
        """
        operator, operators = message.spec.id, self._parts.operators
        found = self._arriving.get(operator)
        present = None if found is None else found.machine
        check_prepare(message, present, operators.me, is_here=operator in operators.instances, is_leaving=is_leaving)
        if found is not None and found.machine.epoch == message.epoch:
            found.prepare_again(respond)
            return
        self.drop(operator, message.epoch)
        operators.room.check_memory(message.spec)
        if not operators.room.reserve(operator, 1, self._parts.host.now()):
            raise PlacementError(f"{operators.me} takes no more operators")
        bytes_max = min(self._parts.config.state_bytes_max, operators.room.budget.arriving_bytes(message.spec.params))
        arrival = self._arriving[operator] = Arrival(self._parts, message, bytes_max, self._ended)
        arrival.begin(respond)

    def chunk(self, message: StateChunk, respond: Done) -> None:
        """Takes a piece of a state; `respond` follows when the piece has been applied.

        Raises
        ------
        SbonError
            The piece is not expected; after a LinkError it must be sent again.
        """
        found = self._arriving.get(message.operator)
        if found is not None and found.machine.epoch == message.epoch:
            found.chunk(message, respond)
        else:
            check_unexpected_piece(message, self._parts.operators.me, self._epoch_here(message.operator))
            respond(DoneMessage())  # it runs here: the answer to its last piece was lost

    def told_to_activate(self, message: Activate) -> None:
        """Runs an operator as its coordinator requests.

        Raises
        ------
        MigrationError
            The operator is not prepared here, and has not run here since.
        """
        found = self._arriving.get(message.operator)
        if found is not None and found.machine.epoch == message.epoch:
            found.happens(lambda now: found.machine.word(message, now))
            return
        gone = self._parts.flow.ends.place(message.operator)
        epoch_here = self._epoch_here(message.operator)
        check_unexpected_word(message, self._parts.operators.me, epoch_here, None if gone is None else gone[1])

    def first_batch(self, operator: OperatorId) -> None:
        """Passes on that data has arrived for an operator."""
        found = self._arriving.get(operator)
        if found is not None:
            found.happens(found.machine.first_batch)

    def drop(self, operator: OperatorId, epoch: int) -> None:
        """Drops an operator whose migration, of this epoch or an earlier one, has been abandoned."""
        found = self._arriving.get(operator)
        if found is not None:
            found.happens(lambda now: found.machine.abandoned(epoch, now))

    def destroyed(self, operator: OperatorId) -> None:
        """Drops an operator whose queries have ended."""
        found = self._arriving.get(operator)
        if found is not None:
            found.happens(found.machine.destroyed)

    def coordinator_gone(self, node: NodeId) -> None:
        """Passes on that a node has failed, or has left."""
        for found in list(self._arriving.values()):
            found.happens(partial(found.machine.coordinator_gone, node))

    def call_off(self) -> None:
        """Drops the operators whose move can still be abandoned; their coordinators learn it with the next piece."""
        for found in list(self._arriving.values()):
            found.happens(found.machine.call_off)

    def close(self) -> None:
        """Cancels all timers."""
        for found in self._arriving.values():
            found.close()

    def _epoch_here(self, operator: OperatorId) -> int | None:
        instance = self._parts.operators.instances.get(operator)
        return None if instance is None else instance.epoch

    def _ended(self, arrival: Arrival) -> None:
        operator = arrival.machine.operator
        del self._arriving[operator]
        if arrival.machine.stage is Stage.RUNNING:
            self._activated(self._parts.operators.activate(operator))


def _reason(problem: BaseException) -> str:
    return str(problem) if isinstance(problem, SbonError) else f"{type(problem).__name__}: {problem}"
