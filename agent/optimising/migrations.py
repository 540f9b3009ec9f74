"""Migrations that this host coordinates, takes part in, or receives: the machines of `sbon.migration` wired to the engine and to others."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from agent.directory import Directory, Done
from agent.engine.engine import Engine
from agent.engine.instance import Instance, State
from agent.host import Host, Timer
from sbon import migration as machine
from sbon.errors import MigrationError, PlacementError, SbonError
from sbon.migration import Arrival, Locks, Migration, MigrationConfig, Phase
from sbon.types import NodeId, OperatorId, QueryId
from sbon.wire import (
    STATE_CHUNK_BYTES,
    Abandon,
    Activate,
    Lock,
    Message,
    Moved,
    Outcome,
    OutcomeAsk,
    Prepare,
    StateChunk,
    Unlock,
)
from sbon.wire import Done as DoneMessage

ORPHAN_S = 600.0
"""A prepared operator whose coordinator stays silent so long is dropped: the coordinator has crashed, or was abandoned for good."""
LOOK_S = 1.0


class MigrationRecord(msgspec.Struct, frozen=True):
    """One ended migration, for telemetry and `sbon operators`."""

    operator: OperatorId
    queries: tuple[QueryId, ...]
    here: NodeId
    there: NodeId
    committed: bool
    reason: str
    """Why it was wanted, then how it ended."""
    outcome: str
    pause_s: float
    seconds: float
    state_bytes: int
    phases: dict[str, float] = {}
    """When each phase (`sbon.migration.Phase`) was first seen, monotonic seconds."""


class MigrationEvents(Protocol):
    """Whom the migrations tell."""

    def migration_ended(self, record: MigrationRecord) -> None:
        """Committed or abandoned."""

    def operator_arrived(self, instance: Instance) -> None:
        """An operator runs here now that ran elsewhere."""


class _Leaving:
    """A migration away from here."""

    def __init__(self, instance: Instance, steps: Migration, reason: str, done: Callable[[MigrationRecord], None]) -> None:
        self.done = done
        self.instance = instance
        self.steps = steps
        self.reason = reason
        self.epoch = instance.epoch + 1
        self.state = b""
        self.phases: dict[str, float] = {}
        self.timer: Timer | None = None


class Migrations:
    """All migrations of one host."""

    def __init__(self, host: Host, directory: Directory, engine: Engine, config: MigrationConfig, events: MigrationEvents) -> None:
        self._host = host
        self._directory = directory
        self._engine = engine
        self._config = config
        self._events = events
        self._leaving: dict[OperatorId, _Leaving] = {}
        self._arriving: dict[OperatorId, tuple[Arrival, float]] = {}
        self._locks = Locks()
        self._look: Timer | None = None
        self.counters = {"migrations_committed": 0, "migrations_abandoned": 0, "operators_arrived": 0}

    # --------------------------------------------------------------------------------------------------- to migrate

    def may_migrate(self, operator: OperatorId) -> bool:
        """Nothing stands in the way here: it runs, is movable, does not move already, and no neighbour does."""
        instance = self._engine.instances.get(operator)
        return (
            instance is not None
            and instance.movable
            and instance.state is State.RUNNING
            and all(output.told and not output.sender.on_disk for output in instance.outputs.values())
            and self.may_be_rewired(operator)
        )

    def may_be_rewired(self, operator: OperatorId) -> bool:
        """It is here, and neither does it move nor does a neighbour: its outputs may go to a multicast, or come back."""
        still = operator not in self._leaving and not self._locks.held(operator, self._host.now())
        return still and operator in self._engine.instances

    def is_leaving(self, operator: OperatorId) -> bool:
        """It is on its way elsewhere, or about to be."""
        return operator in self._leaving

    def migrate(
        self, operator: OperatorId, there: NodeId, reason: str, done: Callable[[MigrationRecord], None] = lambda record: None
    ) -> None:
        """Begin; `done` and `MigrationEvents.migration_ended` follow.

        Raises
        ------
        MigrationError
            The operator cannot move now.
        """
        if not self.may_migrate(operator) or there == self._directory.me:
            raise MigrationError(f"operator {operator} cannot move to {there} now")
        instance = self._engine.instances[operator]
        neighbours: dict[NodeId, tuple[OperatorId, ...]] = {}
        ends = [(i.node, i.link.source) for i in instance.inputs.values()] + [(o.node, o.link.target) for o in instance.outputs.values()]
        for node, neighbour in ends:
            if neighbour not in neighbours.get(node, ()):
                neighbours[node] = (*neighbours.get(node, ()), neighbour)
        now = self._host.now()
        owners = tuple(sorted(set(instance.users.values())))
        leaving = _Leaving(instance, Migration(operator, there, neighbours, owners, self._config, now), reason, done)
        self._leaving[operator] = leaving
        self._perform(leaving, leaving.steps.start(now))

    def node_failed(self, node: NodeId) -> None:
        """The members have declared a node failed."""
        for leaving in list(self._leaving.values()):
            self._perform(leaving, leaving.steps.failed(node, self._host.now()))

    def destroyed(self, operator: OperatorId) -> None:
        """The last query that used an operator has ended, perhaps in the middle of a migration."""
        self._arriving.pop(operator, None)
        leaving = self._leaving.get(operator)
        if leaving is not None:
            self._perform(leaving, leaving.steps.refused("its queries have ended", self._host.now()))

    def arrived_at_prepared(self, operator: OperatorId) -> None:
        """Data has come for a prepared operator: its upstream has been told, so the migration is decided."""
        if operator in self._arriving:
            self._activate(operator)

    def close(self) -> None:
        """Stop looking; nothing is told to anyone."""
        for leaving in self._leaving.values():
            if leaving.timer is not None:
                leaving.timer.cancel()
        if self._look is not None:
            self._look.cancel()

    def _perform(self, leaving: _Leaving, actions: list[machine.Action]) -> None:
        leaving.phases.setdefault(leaving.steps.phase.value, self._host.now())
        for action in actions:
            self._perform_one(leaving, action)
        self._rearm(leaving)

    def _perform_one(self, leaving: _Leaving, action: machine.Action) -> None:
        operator, epoch, there = leaving.instance.id, leaving.epoch, leaving.steps.there
        ask = self._directory.request
        match action:
            case machine.AskLock(node, neighbours):
                lock = Lock(operator=operator, neighbours=neighbours, coordinator=self._directory.me, lease_s=self._config.lease_s)
                ask(node, lock, self._step(leaving, lambda now: leaving.steps.locked(node, now), f"{node} holds its operators"))
            case machine.AskPrepare(node):
                prepare = Prepare(spec=leaving.instance.spec, epoch=epoch, coordinator=self._directory.me, state_bytes=0)
                ask(node, prepare, self._step(leaving, leaving.steps.prepared, f"{node} does not take it"))
            case machine.Pause():
                self._engine.take(operator, partial(self._taken, leaving))
            case machine.Transfer(node):
                self._transfer(leaving, node, 0)
            case machine.Commit():
                self._engine.hand_over(operator, there, epoch)
            case machine.SendActivate(node):
                told = self._step(leaving, leaving.steps.activated, None)
                ask(node, Activate(operator=operator, epoch=epoch), told, self._config.retry_s)
            case machine.SendMoved(node):
                moved = Moved(operator=operator, node=there, epoch=epoch)
                ask(node, moved, self._step(leaving, lambda now: leaving.steps.told(node, now), None), self._config.retry_s)
            case machine.Resume():
                self._engine.resume(operator)
            case machine.SendAbandon(node):
                self._directory.tell(node, Abandon(operator=operator, epoch=epoch))
            case machine.SendUnlock(node):
                self._directory.tell(node, Unlock(operator=operator))
            case machine.Ended():
                self._ended(leaving, action)

    def _step(self, leaving: _Leaving, went_well: Callable[[float], list[machine.Action]], blame: str | None) -> Done:
        """What to do with the answer of one request; `blame` None: a failure is tried again by the machine."""

        def done(result: Message | SbonError) -> None:
            now = self._host.now()
            if not isinstance(result, SbonError):
                self._perform(leaving, went_well(now))
            elif blame is not None:
                self._perform(leaving, leaving.steps.refused(f"{blame}: {result}", now))

        return done

    def _taken(self, leaving: _Leaving, result: bytes | BaseException) -> None:
        now = self._host.now()
        if isinstance(result, BaseException):
            self._perform(leaving, leaving.steps.refused(f"its state cannot be taken: {result}", now))
            return
        leaving.state = result
        self._perform(leaving, leaving.steps.paused(now))

    def _transfer(self, leaving: _Leaving, node: NodeId, index: int) -> None:
        if leaving.steps.phase is not Phase.TRANSFERRING:
            return
        start = index * STATE_CHUNK_BYTES
        last = start + STATE_CHUNK_BYTES >= len(leaving.state)
        piece = leaving.state[start : start + STATE_CHUNK_BYTES]
        chunk = StateChunk(operator=leaving.instance.id, epoch=leaving.epoch, index=index, last=last, data=piece)

        def sent(result: Message | SbonError) -> None:
            now = self._host.now()
            if isinstance(result, SbonError):
                self._perform(leaving, leaving.steps.refused(f"its state did not reach {node}: {result}", now))
            elif last:
                self._perform(leaving, leaving.steps.transferred(now))
            else:
                self._transfer(leaving, node, index + 1)

        self._directory.request(node, chunk, sent, self._config.timeout_s)

    def _ended(self, leaving: _Leaving, action: machine.Ended) -> None:
        if leaving.timer is not None:
            leaving.timer.cancel()
            leaving.timer = None
        self._leaving.pop(leaving.instance.id, None)
        self.counters["migrations_committed" if action.committed else "migrations_abandoned"] += 1
        record = MigrationRecord(
            operator=leaving.instance.id,
            queries=tuple(sorted(leaving.instance.users)),
            here=self._directory.me,
            there=leaving.steps.there,
            committed=action.committed,
            reason=leaving.reason,
            outcome=action.reason,
            pause_s=action.pause_s,
            seconds=action.seconds,
            state_bytes=len(leaving.state),
            phases=dict(leaving.phases),
        )
        self._events.migration_ended(record)
        leaving.done(record)

    def _rearm(self, leaving: _Leaving) -> None:
        if leaving.timer is not None:
            leaving.timer.cancel()
            leaving.timer = None
        when = leaving.steps.next_wake()
        if when is not None and self._leaving.get(leaving.instance.id) is leaving:
            leaving.timer = self._host.call_at(when, lambda: self._perform(leaving, leaving.steps.wake(self._host.now())))

    # ------------------------------------------------------------------------------------------- asked by others

    def handle(self, sender: NodeId, message: Message, respond: Done) -> bool:
        """Answer a request, if it is about migration."""
        match message:
            case Lock():
                self._lock(message)
                respond(DoneMessage())
            case Unlock():
                self._locks.release(message.operator)
                respond(DoneMessage())
            case Prepare():
                self._prepare(message, respond)
            case StateChunk():
                self._chunk(message, respond)
            case Activate():
                self._told_to_activate(message)
                respond(DoneMessage())
            case Abandon():
                self._drop(message.operator, message.epoch)
                respond(DoneMessage())
            case OutcomeAsk():
                respond(Outcome(verdict=self._verdict(sender, message)))
            case _:
                return False
        return True

    def _lock(self, message: Lock) -> None:
        for operator in message.neighbours:
            if operator in self._leaving:
                raise MigrationError(f"{operator} is moving itself")
            if operator not in self._engine.instances:
                raise MigrationError(f"{operator} is not on {self._directory.me}")
        self._locks.grant(message.operator, message.neighbours, self._host.now() + message.lease_s)

    def _prepare(self, message: Prepare, respond: Done) -> None:
        operator = message.spec.id
        if operator in self._engine.instances and operator not in self._arriving:
            raise MigrationError(f"operator {operator} is on {self._directory.me} already")
        self._drop(operator, message.epoch)
        now = self._host.now()
        if not self._engine.reservations.reserve(operator, 1, self._engine.empty_slots, now):
            raise PlacementError(f"{self._directory.me} takes no more operators")
        self._arriving[operator] = (Arrival(operator, message.epoch, message.coordinator, now, self._config), now + ORPHAN_S)
        self._look_again()
        # What the operator needs is loaded before the state is asked for, so that the pause does not pay for it.
        self._host.execute(_load_operators, lambda result: respond(result if isinstance(result, SbonError) else DoneMessage()), rows=0)

    def _chunk(self, message: StateChunk, respond: Done) -> None:
        found = self._arriving.get(message.operator)
        if found is None or found[0].epoch != message.epoch:
            raise MigrationError(f"operator {message.operator} is not expected on {self._directory.me}")
        arrival = found[0]
        state = arrival.chunk(message.index, message.last, message.data, self._host.now())
        if state is None:
            respond(DoneMessage())
            return

        def installed(result: Instance | BaseException) -> None:
            if isinstance(result, SbonError):
                respond(result)
            elif isinstance(result, BaseException):
                respond(MigrationError(f"{type(result).__name__}: {result}"))
            elif self._arriving.get(message.operator) != found:
                self._engine.destroy(message.operator)
                respond(MigrationError(f"operator {message.operator} was called off while its state was installed"))
            else:
                arrival.installed = True
                respond(DoneMessage())

        self._engine.install(state, message.epoch, installed)

    def _told_to_activate(self, message: Activate) -> None:
        found = self._arriving.get(message.operator)
        if found is not None and found[0].installed and found[0].epoch == message.epoch:
            self._activate(message.operator)
            return
        instance = self._engine.instances.get(message.operator)
        gone = self._engine.flow.whereabouts(message.operator)
        if (instance is None or instance.epoch < message.epoch) and (gone is None or gone[1] <= message.epoch):
            raise MigrationError(f"operator {message.operator} is not prepared on {self._directory.me}")

    def _activate(self, operator: OperatorId) -> None:
        arrival, _ = self._arriving[operator]
        if not arrival.installed:
            return
        del self._arriving[operator]
        self._engine.activate(operator)
        self.counters["operators_arrived"] += 1
        self._events.operator_arrived(self._engine.instances[operator])

    def _drop(self, operator: OperatorId, epoch: int) -> None:
        found = self._arriving.get(operator)
        if found is not None and found[0].epoch <= epoch:
            del self._arriving[operator]
            self._engine.reservations.end(operator)
            if found[0].installed:
                self._engine.destroy(operator)

    def _verdict(self, asker: NodeId, message: OutcomeAsk) -> str:
        leaving = self._leaving.get(message.operator)
        if leaving is not None and leaving.epoch == message.epoch and leaving.steps.there == asker:
            return "committed" if leaving.steps.phase is Phase.COMMITTING else "undecided"
        gone = self._engine.flow.whereabouts(message.operator)
        return "committed" if gone is not None and gone[0] == asker and gone[1] >= message.epoch else "abandoned"

    # ------------------------------------------------------------------------------- prepared, and nothing heard since

    def _look_again(self) -> None:
        if self._look is None and self._arriving:
            self._look = self._host.call_at(self._host.now() + LOOK_S, self._look_now)

    def _look_now(self) -> None:
        self._look = None
        now = self._host.now()
        for operator, (arrival, until) in list(self._arriving.items()):
            if now >= until:
                self._drop(operator, arrival.epoch)
            elif arrival.must_ask(now):
                ask = OutcomeAsk(operator=operator, epoch=arrival.epoch)
                self._directory.request(arrival.coordinator, ask, partial(self._heard, operator, arrival))
        self._look_again()

    def _heard(self, operator: OperatorId, arrival: Arrival, result: Message | SbonError) -> None:
        found = self._arriving.get(operator)
        if found is None or found[0] is not arrival or not isinstance(result, Outcome):
            return
        if result.verdict == "committed":
            self._activate(operator)
        elif result.verdict == "abandoned":
            self._drop(operator, arrival.epoch)


def _load_operators() -> None:
    import sbon.operators.registry  # noqa: F401
