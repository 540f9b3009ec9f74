"""All migrations that this host coordinates, takes part in, or receives: connects the state machines of `sbon.migration` with the engine
and with other hosts. The optimisers, `sbon_agent.optimising.leaving` and a person's request (`sbon_agent.control_requests`) start
migrations here.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from sbon.errors import AuthorityError, LinkError, MigrationError, SbonError
from sbon.execution.life import State
from sbon.locks import Locks
from sbon.membership.members import MemberStatus
from sbon.migration import actions
from sbon.migration.config import MigrationConfig
from sbon.migration.machine import Migration, Phase
from sbon.types import NodeId, OperatorId, QueryId
from sbon.wire.links import Moved
from sbon.wire.messages import Done as DoneMessage
from sbon.wire.messages import Message
from sbon.wire.migration import Abandon, Activate, Lock, Outcome, OutcomeAsk, Prepare, StateChunk, Unlock
from sbon_agent.directory import Directory, Done
from sbon_agent.engine.engine import Engine
from sbon_agent.engine.instance import Instance
from sbon_agent.host import Host, Timer
from sbon_agent.optimising.arrivals import Arrivals
from sbon_agent.optimising.copying import Copying

TRIED_MAX = 1024
"""Number of operators whose last migration epoch is remembered; older ones are forgotten."""


class MigrationRecord(msgspec.Struct, frozen=True):
    """One ended migration, for telemetry and `sbon operators`."""

    operator: OperatorId
    queries: tuple[QueryId, ...]
    here: NodeId
    there: NodeId
    committed: bool
    reason: str
    """Why the migration was wanted."""
    outcome: str
    pause_s: float
    seconds: float
    state_bytes: int
    """Bytes sent: the state, later input, and the engine's record."""
    phases: dict[str, float] = {}
    """Monotonic time at which each phase (`sbon.migration.machine.Phase`) was first entered, in seconds."""
    copy_s: float = 0.0
    """How long the state was copied while the operator ran on, in seconds."""
    rounds: int = 0
    """Number of rounds in which later input was sent."""


class MigrationEvents(Protocol):
    """Callbacks of the migrations; the node implements them."""

    def migration_ended(self, record: MigrationRecord) -> None:
        """A migration has been committed or abandoned."""

    def operator_arrived(self, instance: Instance) -> None:
        """An operator that ran elsewhere runs here now."""


class _Leaving:
    """A migration away from here; it implements `sbon_agent.optimising.copying.CopyEvents`."""

    def __init__(self, instance: Instance, steps: Migration, epoch: int, reason: str, done: Callable[[MigrationRecord], None]) -> None:
        self.done = done
        self.instance = instance
        self.steps = steps
        self.reason = reason
        self.epoch = epoch
        self.phases: dict[str, float] = {}
        self.timer: Timer | None = None
        self.copying: Copying | None = None
        self.now: Callable[[], float] = lambda: 0.0
        self.perform: Callable[[list[actions.Action]], None] = lambda wanted: None

    def progressed(self) -> None:
        """A piece has been applied at the new host."""
        self.perform(self.steps.progressed(self.now()))

    def copied(self, left_bytes: int) -> None:
        """The state, or a round of input, has been applied at the new host."""
        self.perform(self.steps.copied(left_bytes, self.now()))

    def overtaken(self) -> None:
        """More input waits than may be kept."""
        self.perform(self.steps.overtaken(self.now()))

    def delivered(self) -> None:
        """The new host has everything, which commits the migration."""
        self.perform(self.steps.transferred(self.now()))

    def failed(self, reason: str) -> None:
        """The copy cannot continue."""
        self.perform(self.steps.refused(reason, self.now()))


class Migrations:
    """All migrations of one host."""

    def __init__(
        self,
        host: Host,
        directory: Directory,
        engine: Engine,
        config: MigrationConfig,
        events: MigrationEvents,
        departure_of: Callable[[NodeId], MemberStatus | None],
    ) -> None:
        self._host = host
        self._departure_of = departure_of
        self._directory = directory
        self._engine = engine
        self._config = config
        self._events = events
        self._leaving: dict[OperatorId, _Leaving] = {}
        self._tried: OrderedDict[OperatorId, int] = OrderedDict()
        self._arrivals = Arrivals(host, directory, engine, config, self._arrived)
        self._locks = Locks()
        self.counters = {"migrations_committed": 0, "migrations_abandoned": 0, "operators_arrived": 0}

    # ------------------------------------------------------------------------------------------ starting migrations

    def may_migrate(self, operator: OperatorId) -> bool:
        """Tells whether an operator can migrate as far as this host knows: it runs, is movable, does not move already, and no neighbour
        does.
        """
        return not self.hindrance(operator)

    def hindrance(self, operator: OperatorId) -> str:
        """Returns why an operator cannot move now; empty if nothing prevents it here."""
        instance = self._engine.instances.get(operator)
        if instance is None:
            return f"it is not on {self._directory.me}"
        if not instance.movable:
            return "it is pinned"
        if instance.state is not State.RUNNING:
            return f"it is {instance.state.value}" + (f": {instance.reason}" if instance.reason else "")
        if instance.stays_for:
            return instance.stays_for
        if not all(output.told for output in instance.outputs.values()):
            return "its consumers have not yet been told whose their inputs are"
        return "" if self.may_be_rewired(operator) else "it or a neighbour is moving already"

    def may_be_rewired(self, operator: OperatorId) -> bool:
        """Tells whether an operator is here and neither it nor a neighbour moves.

        Its outputs may then be handed to a multicast, or back.
        """
        still = operator not in self._leaving and not self._locks.held(operator, self._host.now())
        return still and operator in self._engine.instances

    @property
    def departing(self) -> int:
        """Number of operators on their way to other hosts, including those that have arrived but of which not all neighbours have been
        told.
        """
        return len(self._leaving)

    @property
    def arriving(self) -> int:
        """Number of operators on their way here."""
        return len(self._arrivals)

    def call_off_arrivals(self) -> None:
        """Refuses the operators on their way here whose move can still be abandoned; they run on where they are."""
        self._arrivals.call_off()

    def neighbours(self, instance: Instance) -> dict[NodeId, tuple[OperatorId, ...]]:
        """Returns the operators at the other ends of an operator's links, by host.

        A source that is gone for good is left out: it cannot grant a lock or be told anything, and would hold the operator here for ever.
        """
        neighbours: dict[NodeId, tuple[OperatorId, ...]] = {}
        feeding = [i for i in instance.inputs.values() if not (i.lost and (i.told_lost or self._departure_of(i.node)))]
        ends = [(i.node, i.link.source) for i in feeding] + [(o.node, o.link.target) for o in instance.outputs.values()]
        for node, neighbour in ends:
            if neighbour not in neighbours.get(node, ()):
                neighbours[node] = (*neighbours.get(node, ()), neighbour)
        return neighbours

    def is_leaving(self, operator: OperatorId) -> bool:
        """Tells whether an operator's migration away from here has begun."""
        return operator in self._leaving

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
        instance = self._engine.instances[operator]
        now = self._host.now()
        steps = Migration(operator, there, self.neighbours(instance), _owners(instance), self._config, now)
        leaving = _Leaving(instance, steps, self._next_epoch(instance), reason, done)
        leaving.now, leaving.perform = self._host.now, partial(self._perform, leaving)
        self._leaving[operator] = leaving
        self._perform(leaving, leaving.steps.start(now))

    def _next_epoch(self, instance: Instance) -> int:
        """Returns an epoch above those of all earlier attempts, so that late messages of an abandoned one are recognised."""
        epoch = self._tried[instance.id] = max(instance.epoch, self._tried.get(instance.id, 0)) + 1
        self._tried.move_to_end(instance.id)
        while len(self._tried) > TRIED_MAX:
            self._tried.popitem(last=False)
        return epoch

    def node_failed(self, node: NodeId, *, left: bool) -> None:
        """Handles a node that the membership has declared failed, or that has left in good order."""
        for leaving in list(self._leaving.values()):
            self._perform(leaving, leaving.steps.failed(node, self._host.now(), left=left))
        self._arrivals.coordinator_failed(node)

    def destroyed(self, operator: OperatorId) -> None:
        """Abandons the migration of an operator whose last query has ended."""
        self._arrivals.forget(operator)
        leaving = self._leaving.get(operator)
        if leaving is not None:
            self._perform(leaving, leaving.steps.refused("its queries have ended", self._host.now()))

    def arrived_at_prepared(self, operator: OperatorId) -> None:
        """Runs a PREPARED operator for which data has arrived: its senders have been told, so the migration is committed."""
        self._arrivals.activate(operator)

    def close(self) -> None:
        """Stops all timers and copies; nobody is told."""
        for leaving in self._leaving.values():
            if leaving.timer is not None:
                leaving.timer.cancel()
            if leaving.copying is not None:
                leaving.copying.stop()
        self._arrivals.close()

    def _perform(self, leaving: _Leaving, wanted: list[actions.Action]) -> None:
        leaving.phases.setdefault(leaving.steps.phase.value, self._host.now())
        for action in wanted:
            self._perform_one(leaving, action)
        self._rearm(leaving)

    def _perform_one(self, leaving: _Leaving, action: actions.Action) -> None:
        operator, epoch, there = leaving.instance.id, leaving.epoch, leaving.steps.there
        ask = self._directory.request
        match action:
            case actions.AskLock(node, neighbours):
                self._ask_lock(leaving, node, neighbours)
            case actions.AskPrepare(node):
                feeds = tuple(sorted({output.node for output in leaving.instance.outputs.values()}))
                prepare = Prepare(spec=leaving.instance.spec, epoch=epoch, coordinator=self._directory.me, feeds=feeds)
                ask(node, prepare, self._step(leaving, leaving.steps.prepared, f"{node} does not take it"))
            case actions.Copy(node):
                leaving.copying = Copying(self._host, self._directory, self._engine, self._config, operator, epoch, node, leaving)
                leaving.copying.begin()
            case actions.CopyMore():
                assert leaving.copying is not None
                leaving.copying.more()
            case actions.StopCopying():
                if leaving.copying is not None:
                    leaving.copying.stop()
            case actions.Pause():
                self._engine.pause(operator, partial(self._paused, leaving))
            case actions.Transfer(node):
                assert leaving.copying is not None
                leaving.copying.finish()
            case actions.Commit():
                if leaving.copying is not None:
                    leaving.copying.stop()
                self._engine.hand_over(operator, there, epoch)
            case actions.SendActivate(node):
                steps, activate = leaving.steps, Activate(operator=operator, epoch=epoch)
                ask(node, activate, self._word(leaving, node, steps.activated, steps.unknown_there), self._config.timeout_s)
            case actions.SendMoved(node):
                moved = Moved(operator=operator, node=there, epoch=epoch)
                ask(node, moved, self._word(leaving, node, lambda now: leaving.steps.told(node, now)), self._config.timeout_s)
            case actions.Resume():
                self._engine.resume(operator)
            case actions.SendAbandon(node):
                self._directory.tell(node, Abandon(operator=operator, epoch=epoch))
            case actions.SendUnlock(node, moved):
                self._directory.tell(node, Unlock(operator=operator, moved=moved))
            case actions.Ended():
                self._ended(leaving, action)

    def _ask_lock(self, leaving: _Leaving, node: NodeId, neighbours: tuple[OperatorId, ...]) -> None:
        sends = any(incoming.node == node for incoming in leaving.instance.inputs.values())
        lock = Lock(
            operator=leaving.instance.id,
            neighbours=neighbours,
            coordinator=self._directory.me,
            lease_s=self._config.lease_s,
            there=leaving.steps.there,
            epoch=leaving.epoch,
            sends=sends,
        )
        asked_at = self._host.now()

        def answered(result: Message | SbonError) -> None:
            now = self._host.now()
            if not isinstance(result, SbonError):
                self._perform(leaving, leaving.steps.locked(node, asked_at, now))
            elif leaving.steps.phase is Phase.LOCKING or not isinstance(result, LinkError):
                self._perform(leaving, leaving.steps.refused(f"{node} holds its operators: {result}", now))
            # Otherwise the lock still holds, and it is asked for again.

        self._directory.request(node, lock, answered)

    def _paused(self, leaving: _Leaving, problem: BaseException | None) -> None:
        now = self._host.now()
        if problem is not None:
            self._perform(leaving, leaving.steps.refused(f"it does not come to rest: {problem}", now))
        else:
            self._perform(leaving, leaving.steps.paused(self.neighbours(leaving.instance), _owners(leaving.instance), now))

    def _step(self, leaving: _Leaving, went_well: Callable[[float], list[actions.Action]], blame: str) -> Done:
        """Returns the handler for the answer to a request of a migration that is not committed."""

        def done(result: Message | SbonError) -> None:
            now = self._host.now()
            if isinstance(result, SbonError):
                self._perform(leaving, leaving.steps.refused(f"{blame}: {result}", now))
            else:
                self._perform(leaving, went_well(now))

        return done

    def _word(
        self,
        leaving: _Leaving,
        node: NodeId,
        heard: Callable[[float], list[actions.Action]],
        unknown: Callable[[float], list[actions.Action]] = lambda now: [],
    ) -> Done:
        """Returns the handler for the answer to a message that a migration is committed; the machine repeats unanswered ones.

        An answer may take longer than the pause between two messages. A node that has departed is no longer waited for; it may have done so
        before the commit.
        """

        def done(result: Message | SbonError) -> None:
            now = self._host.now()
            if not isinstance(result, SbonError):
                self._perform(leaving, heard(now))
            elif (gone := self._departure_of(node)) is not None:
                self._perform(leaving, leaving.steps.failed(node, now, left=gone is MemberStatus.LEFT))
            elif isinstance(result, MigrationError):
                self._perform(leaving, unknown(now))
            elif isinstance(result, AuthorityError):
                self._perform(leaving, leaving.steps.disbelieved(node, now))

        return done

    def _ended(self, leaving: _Leaving, action: actions.Ended) -> None:
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
            state_bytes=leaving.copying.sent_bytes if leaving.copying is not None else 0,
            phases=dict(leaving.phases),
            copy_s=action.copy_s,
            rounds=action.rounds,
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

    # ----------------------------------------------------------------------------------- requests of other hosts

    def handle(self, sender: NodeId, message: Message, respond: Done) -> bool:
        """Answers a request if it is about migration; returns False otherwise."""
        match message:
            case Lock():
                self._lock(message, respond)
            case Unlock():
                self._unlock(message.operator, sender, message.moved)
                respond(DoneMessage())
            case Prepare():
                if message.spec.id in self._leaving:
                    # A sender that does not know yet that the operator left would send to it here, and so wake it before its return is
                    # committed.
                    raise MigrationError(f"not everyone has been told that operator {message.spec.id} has left {self._directory.me}")
                self._arrivals.prepare(message, respond)
            case StateChunk():
                self._arrivals.chunk(message, respond)
            case Activate():
                self._arrivals.told_to_activate(message)
                respond(DoneMessage())
            case Abandon():
                self._arrivals.drop(message.operator, message.epoch)
                respond(DoneMessage())
            case OutcomeAsk():
                respond(Outcome(verdict=self._verdict(sender, message)))
            case _:
                return False
        return True

    def _lock(self, message: Lock, respond: Done) -> None:
        ends = self._engine.flow.far_ends(message.operator)
        # Locks all operators that have a link with the moving one, whichever its host named: nobody locks operators that are not
        # neighbours.
        beside = tuple(sorted({instance.id for instance, _ in ends}))
        for operator in (*message.neighbours, *beside):
            if operator in self._leaving:
                raise MigrationError(f"{operator} is moving itself")
            if operator not in self._engine.instances:
                raise MigrationError(f"{operator} is not on {self._directory.me}")
        if message.lease_s > self._config.lease_s_max:
            longest = f"{self._directory.me} gives {self._config.lease_s_max:g} s at most (migration.lease_s_max)"
            raise MigrationError(f"operators are to keep still for {message.lease_s:g} s, and {longest}")
        now = self._host.now()
        self._locks.expire(now)
        renewed = bool(beside) and self._locks.granted(message.operator, beside, now)
        self._locks.grant(message.operator, beside, now + message.lease_s, message.coordinator)
        for _, end in ends:
            if message.there:
                end.name(message.there, message.epoch)
        reaches = message.sends and bool(message.there)
        if renewed or not reaches:
            respond(DoneMessage())
        if reaches:
            reached = (lambda problem: None) if renewed else (lambda problem: respond(problem or DoneMessage()))
            self._directory.reach((message.there,), reached)

    def _unlock(self, operator: OperatorId, holder: NodeId, moved: bool) -> None:
        if self._locks.release(operator, holder) and not moved:
            for _, end in self._engine.flow.far_ends(operator):
                end.unname(holder)

    def holder(self, operator: OperatorId) -> NodeId | None:
        """Returns the host for whose migration of this operator neighbours here are locked."""
        return self._locks.holder(operator)

    def coordinator(self, operator: OperatorId) -> tuple[NodeId, int] | None:
        """Returns the host that moves an operator to here, and the epoch."""
        return self._arrivals.coordinator(operator)

    def _arrived(self, instance: Instance) -> None:
        self.counters["operators_arrived"] += 1
        self._events.operator_arrived(instance)

    def _verdict(self, asker: NodeId, message: OutcomeAsk) -> str:
        leaving = self._leaving.get(message.operator)
        if leaving is not None and leaving.epoch == message.epoch and leaving.steps.there == asker:
            return "committed" if leaving.steps.phase is Phase.COMMITTING else "undecided"
        gone = self._engine.flow.whereabouts(message.operator)
        return "committed" if gone is not None and gone[0] == asker and gone[1] >= message.epoch else "abandoned"


def _owners(instance: Instance) -> tuple[NodeId, ...]:
    """Returns the homes of the queries that use an operator."""
    return tuple(sorted(set(instance.users.values())))
