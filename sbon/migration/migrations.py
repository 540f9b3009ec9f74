"""All migrations that one host takes part in: as the old host, as the new host, or as a neighbour. Connects the machines of
`sbon.migration` with the engine and with other hosts. The optimisers, `sbon.rearranging.leaving` and a person's request
(`sbon_agent.control_requests`) start migrations here.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from sbon.delivery.flow import Flow
from sbon.errors import MigrationError, SbonError
from sbon.execution.engine import Engine
from sbon.execution.instance import Instance
from sbon.execution.life import State
from sbon.execution.operators import Operators
from sbon.membership.members import MemberStatus
from sbon.migration import neighbour
from sbon.migration.arrivals import Arrivals
from sbon.migration.config import MigrationConfig
from sbon.migration.departure import Departure
from sbon.migration.epochs import Epochs, verdict
from sbon.migration.neighbour import Neighbour
from sbon.migration.outcome import MigrationRecord
from sbon.migration.parts import Neighbours, Parts
from sbon.peers.directory import Directory, Done
from sbon.ports import Executor
from sbon.types import NodeId, OperatorId
from sbon.wire.messages import Done as DoneMessage
from sbon.wire.messages import Message
from sbon.wire.migration import Abandon, Activate, Lock, Outcome, OutcomeAsk, Prepare, StateChunk, Unlock


class MigrationEvents(Protocol):
    """Callbacks of the migrations; the node implements them."""

    def migration_ended(self, record: MigrationRecord) -> None:
        """A migration has been committed or abandoned."""

    def operator_arrived(self, instance: Instance) -> None:
        """An operator that ran elsewhere runs here now."""


class Migrations:
    """All migrations of one host."""

    def __init__(
        self,
        host: Executor,
        directory: Directory,
        engine: Engine,
        operators: Operators,
        flow: Flow,
        config: MigrationConfig,
        events: MigrationEvents,
        departure_of: Callable[[NodeId], MemberStatus | None],
    ) -> None:
        self._host = host
        self._directory = directory
        self._operators = operators
        self._flow = flow
        self._events = events
        self._parts = Parts(host, directory, engine, operators, flow, config, departure_of)
        self._leaving: dict[OperatorId, Departure] = {}
        self._epochs = Epochs()
        self._arrivals = Arrivals(self._parts, self._arrived)
        self._neighbour = Neighbour(directory.me, config.lease_s_max)
        self.counters = {"migrations_committed": 0, "migrations_abandoned": 0, "operators_arrived": 0}

    # ------------------------------------------------------------------------------------------ starting migrations

    def may_migrate(self, operator: OperatorId) -> bool:
        """Tells whether an operator can migrate as far as this host knows: it runs, is movable, does not move already, and no neighbour
        does.
        """
        return not self.hindrance(operator)

    def hindrance(self, operator: OperatorId) -> str:
        """Returns why an operator cannot move now; empty if nothing prevents it here."""
        instance = self._operators.instances.get(operator)
        if instance is None:
            return f"it is not on {self._directory.me}"
        if not instance.movable:
            return "it is pinned"
        if instance.state is not State.RUNNING:
            return f"it is {instance.state.value}" + (f": {instance.reason}" if instance.reason else "")
        if instance.stays_for:
            return instance.stays_for
        if any(operator in output.staying for one in self._operators.instances.values() for output in one.outputs.values()):
            return "consumers have not yet been told which operator feeds them"
        return "" if self.may_be_rewired(operator) else "it or a neighbour is moving already"

    def may_be_rewired(self, operator: OperatorId) -> bool:
        """Tells whether an operator is here and neither it nor a neighbour moves.

        Its outputs may then be handed to a multicast, or back.
        """
        still = operator not in self._leaving and not self._neighbour.keeps_still(operator, self._host.now())
        return still and operator in self._operators.instances

    @property
    def departing(self) -> int:
        """Number of operators on their way to other hosts, including those that have arrived and not all of whose neighbours know it."""
        return len(self._leaving)

    @property
    def arriving(self) -> int:
        """Number of operators on their way here."""
        return len(self._arrivals)

    def call_off_arrivals(self) -> None:
        """Refuses the operators on their way here whose move can still be abandoned; they run on where they are."""
        self._arrivals.call_off()

    def neighbours(self, instance: Instance) -> Neighbours:
        """Returns the operators at the other ends of an operator's links, by host."""
        return self._parts.neighbours(instance)

    def is_leaving(self, operator: OperatorId) -> bool:
        """Tells whether an operator's migration away from here has begun."""
        return operator in self._leaving

    def gives_way(self, operator: OperatorId, lost: OperatorId) -> bool:
        """Calls off the move of an operator whose neighbour is made again. Returns False if it moves nevertheless."""
        if operator in self._leaving:
            self._leaving[operator].refused(f"its neighbour {lost} is made again")
        return operator not in self._leaving

    def migrate(
        self, operator: OperatorId, there: NodeId, reason: str, done: Callable[[MigrationRecord], None] = lambda record: None
    ) -> None:
        """Begins a migration; `done` and `MigrationEvents.migration_ended` follow.

        Raises
        ------
        MigrationError
            The operator cannot move now.
        """
        hindrance = "it is there" if there == self._directory.me else self.hindrance(operator)
        if hindrance:
            raise MigrationError(f"operator {operator} cannot move to {there} now: {hindrance}")
        instance = self._operators.instances[operator]
        epoch = self._epochs.next(operator, instance.epoch)
        departure = self._leaving[operator] = Departure(self._parts, instance, there, epoch, reason, partial(self._ended, done))
        departure.begin()

    def _ended(self, done: Callable[[MigrationRecord], None], record: MigrationRecord) -> None:
        del self._leaving[record.operator]
        self.counters["migrations_committed" if record.committed else "migrations_abandoned"] += 1
        self._events.migration_ended(record)
        done(record)

    def node_failed(self, node: NodeId, *, left: bool) -> None:
        """Handles a node that the membership has declared failed, or that has left in good order."""
        for leaving in list(self._leaving.values()):
            leaving.node_failed(node, left=left)
        self._arrivals.coordinator_gone(node)

    def destroyed(self, operator: OperatorId) -> None:
        """Abandons the migration of an operator whose last query has ended."""
        self._arrivals.destroyed(operator)
        leaving = self._leaving.get(operator)
        if leaving is not None:
            leaving.refused("its queries have ended")

    def arrived_at_prepared(self, operator: OperatorId) -> None:
        """Runs a PREPARED operator for which data has arrived: its senders have been told, so the migration is committed."""
        self._arrivals.first_batch(operator)

    def close(self) -> None:
        """Stops all timers and copies; nobody is told."""
        for leaving in self._leaving.values():
            leaving.close()
        self._arrivals.close()

    # ----------------------------------------------------------------------------------- requests of other hosts

    def handle(self, sender: NodeId, message: Message, respond: Done) -> bool:
        """Answers a request if it is about migration; returns False otherwise."""
        match message:
            case Lock():
                self._lock(message, respond)
            case Unlock():
                self._perform(self._neighbour.unlock(message, sender), respond)
                respond(DoneMessage())
            case Prepare():
                self._arrivals.prepare(message, respond, is_leaving=message.spec.id in self._leaving)
            case StateChunk():
                self._arrivals.chunk(message, respond)
            case Activate():
                self._arrivals.told_to_activate(message)
                respond(DoneMessage())
            case Abandon():
                self._arrivals.drop(message.operator, message.epoch)
                respond(DoneMessage())
            case OutcomeAsk():
                leaving = self._leaving.get(message.operator)
                gone = self._flow.ends.place(message.operator)
                tried = self._epochs.tried(message.operator)
                respond(Outcome(verdict=verdict(sender, message.epoch, None if leaving is None else leaving.steps, gone, tried)))
            case _:
                return False
        return True

    def _lock(self, message: Lock, respond: Done) -> None:
        beside = tuple(sorted({instance.id for instance, _ in self._flow.ends.beside(message.operator)}))
        self._perform(self._neighbour.lock(message, beside, self._operators.instances, self._leaving, self._host.now()), respond)

    def _perform(self, wanted: list[neighbour.Action], respond: Done) -> None:
        for action in wanted:
            match action:
                case neighbour.NameNext(operator, node, epoch):
                    for _, end in self._flow.ends.beside(operator):
                        end.name(node, epoch)
                case neighbour.UnnameNext(operator, holder):
                    for _, end in self._flow.ends.beside(operator):
                        end.unname(holder)
                case neighbour.Grant():
                    respond(DoneMessage())
                case neighbour.Reach(node, grants):
                    self._directory.reach((node,), partial(_answer, respond) if grants else lambda problem: None)

    def holder(self, operator: OperatorId) -> NodeId | None:
        """Returns the host that moves this operator, and has locked its neighbours here."""
        return self._neighbour.holder(operator)

    def coordinator(self, operator: OperatorId) -> tuple[NodeId, int] | None:
        """Returns the host that moves an operator here, and the epoch of the move."""
        return self._arrivals.coordinator(operator)

    def _arrived(self, instance: Instance) -> None:
        self.counters["operators_arrived"] += 1
        self._events.operator_arrived(instance)


def _answer(respond: Done, problem: SbonError | None) -> None:
    respond(problem or DoneMessage())
