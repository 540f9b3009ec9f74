"""Receiving side of migrations: reserves room for operators on their way to this host, takes their state piece by piece, and runs them when
told. `sbon_agent.optimising.migrations` owns it.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from sbon.errors import LinkError, MigrationError, PlacementError, SbonError
from sbon.migration.config import MigrationConfig
from sbon.pacing import Pacer
from sbon.state_pieces import Arrival, Turn
from sbon.types import NodeId, OperatorId
from sbon.wire.messages import Done as DoneMessage
from sbon.wire.messages import Message
from sbon.wire.migration import Activate, Outcome, OutcomeAsk, Prepare, StateChunk
from sbon_agent.directory import Directory, Done
from sbon_agent.engine.copying import Assembly
from sbon_agent.engine.engine import Engine
from sbon_agent.engine.instance import Instance
from sbon_agent.host import Host, Timer
from sbon_agent.optimising.copying import BURST_S, metered

ORPHAN_S = 600.0
"""A prepared operator is dropped after its coordinator has been silent for this long, in seconds: the coordinator has crashed or been given
up."""
LOOK_S = 1.0
QUEUED_BYTES_MAX = 64 * 2**20
"""Bytes of one state that may wait to be taken; pieces beyond that are refused and must be sent again."""


class _Arriving:
    """One operator on its way here."""

    def __init__(self, machine: Arrival, assembly: Assembly, feeds: tuple[NodeId, ...], until: float, share: float) -> None:
        self.machine = machine
        self.pacer = Pacer(share, BURST_S)
        self.pause: Timer | None = None
        self.assembly = assembly
        self.feeds = feeds
        self.until = until
        self.queue: deque[StateChunk] = deque()
        self.queued_bytes = 0
        self.waiting: dict[int, Done] = {}
        self.busy = False


class Arrivals:
    """All operators on their way here."""

    def __init__(
        self, host: Host, directory: Directory, engine: Engine, config: MigrationConfig, activated: Callable[[Instance], None]
    ) -> None:
        self._host = host
        self._directory = directory
        self._engine = engine
        self._config = config
        self._activated = activated
        self._arriving: dict[OperatorId, _Arriving] = {}
        self._look: Timer | None = None

    def __contains__(self, operator: OperatorId) -> bool:
        return operator in self._arriving

    def __len__(self) -> int:
        return len(self._arriving)

    def coordinator(self, operator: OperatorId) -> tuple[NodeId, int] | None:
        """Returns the host that moves an operator to here and the epoch of the move; None if the operator is not on its way."""
        found = self._arriving.get(operator)
        return None if found is None else (found.machine.coordinator, found.machine.epoch)

    def call_off(self) -> None:
        """Drops the operators whose state has not arrived in full; their coordinators learn it with the next piece.

        The move of the others may be committed already.
        """
        for operator, found in list(self._arriving.items()):
            if not found.machine.installed:
                self.drop(operator, found.machine.epoch)

    def close(self) -> None:
        """Cancels the timer."""
        if self._look is not None:
            self._look.cancel()

    def forget(self, operator: OperatorId) -> None:
        """Forgets an operator that has been destroyed here."""
        self._arriving.pop(operator, None)

    def prepare(self, message: Prepare, respond: Done) -> None:
        """Reserves room for an operator; `respond` follows when its state may be sent.

        Raises
        ------
        SbonError
            There is no room, or the operator is here.
        """
        operator = message.spec.id
        if operator in self._engine.instances and operator not in self._arriving:
            raise MigrationError(f"operator {operator} is on {self._directory.me} already")
        self.drop(operator, message.epoch)
        self._engine.check_memory(message.spec)
        now = self._host.now()
        if not self._engine.reservations.reserve(operator, 1, self._engine.empty_slots, now):
            raise PlacementError(f"{self._directory.me} takes no more operators")
        config = self._config
        bytes_max = min(config.state_bytes_max, self._engine.budget.room_bytes)
        machine = Arrival(operator, message.epoch, message.coordinator, now, config.prepared_s, bytes_max)
        self._arriving[operator] = _Arriving(
            machine, Assembly(message.spec, self._engine.extensions), message.feeds, now + ORPHAN_S, config.copy_share
        )
        self._look_again()

        def loaded(result: object) -> None:
            if isinstance(result, SbonError):
                respond(result)
            else:
                self._directory.reach(message.feeds, lambda problem: respond(problem or DoneMessage()))

        # The operator's libraries are loaded and its consumers' hosts connected before the operator pauses.
        self._host.execute(self._arriving[operator].assembly.load, loaded, rows=0)

    def chunk(self, message: StateChunk, respond: Done) -> None:
        """Takes a piece of a state; `respond` follows when the piece has been applied.

        Raises
        ------
        SbonError
            The piece is not expected; after a LinkError it must be sent again.
        """
        found = self._arriving.get(message.operator)
        if found is None or found.machine.epoch != message.epoch:
            instance = self._engine.instances.get(message.operator)
            if instance is not None and instance.epoch == message.epoch:
                respond(DoneMessage())  # it runs here: the answer to its last piece was lost
                return
            raise MigrationError(f"operator {message.operator} is not expected on {self._directory.me}")
        if found.queued_bytes > QUEUED_BYTES_MAX:
            raise LinkError(f"{found.queued_bytes} bytes of the state of {message.operator} wait on {self._directory.me}")
        now = self._host.now()
        turn = found.machine.arrived(message.index, message.last, len(message.data), now)
        found.until = now + ORPHAN_S
        if turn is Turn.ANSWER:
            respond(DoneMessage())
            return
        found.waiting[message.index] = respond
        if turn is Turn.TAKE:
            found.queue.append(message)
            found.queued_bytes += len(message.data)
            self._take_next(found)

    def _take_next(self, found: _Arriving) -> None:
        if found.busy or not found.queue:
            return
        if found.pause is not None:
            found.pause.cancel()
            found.pause = None
        if not found.assembly.is_built:
            # The last queued piece says how urgent all of them are: a paused operator or a late copy makes all pieces urgent.
            wait_s = found.pacer.wait_s(self._host.now(), found.queue[-1].urgent)
            if wait_s > 0:
                found.pause = self._host.call_at(self._host.now() + wait_s, partial(self._take_next, found))
                return
        message = found.queue.popleft()
        found.queued_bytes -= len(message.data)
        found.busy = True

        def taken(result: tuple[None, float] | BaseException) -> None:
            if not isinstance(result, BaseException):
                found.pacer.took(result[1], self._host.now())
            if isinstance(result, BaseException) or not message.last or self._arriving.get(message.operator) is not found:
                had_effect(result)
            else:
                self._engine.install(found.assembly, message.epoch, had_effect)

        def had_effect(result: object) -> None:
            found.busy = False
            self._respond(found, message, result)
            self._take_next(found)

        self._host.execute(partial(metered, self._host, partial(found.assembly.take, message.data)), taken, rows=0)

    def _respond(self, found: _Arriving, message: StateChunk, result: object) -> None:
        respond = found.waiting.pop(message.index)
        if isinstance(result, BaseException):
            respond(result if isinstance(result, SbonError) else MigrationError(f"{type(result).__name__}: {result}"))
        elif self._arriving.get(message.operator) is not found:
            if isinstance(result, Instance):
                self._engine.destroy(message.operator)
            respond(MigrationError(f"operator {message.operator} was called off while its state came"))
        else:
            found.machine.had_effect()
            found.machine.installed = message.last
            respond(DoneMessage())

    def told_to_activate(self, message: Activate) -> None:
        """Runs an operator as its coordinator requests.

        Raises
        ------
        MigrationError
            The operator is not prepared here, and was not before.
        """
        found = self._arriving.get(message.operator)
        if found is not None and found.machine.installed and found.machine.epoch == message.epoch:
            self.activate(message.operator)
            return
        instance = self._engine.instances.get(message.operator)
        gone = self._engine.flow.whereabouts(message.operator)
        if (instance is None or instance.epoch < message.epoch) and (gone is None or gone[1] <= message.epoch):
            raise MigrationError(f"operator {message.operator} is not prepared on {self._directory.me}")

    def activate(self, operator: OperatorId) -> None:
        """Runs an installed operator whose migration is known to be committed."""
        found = self._arriving.get(operator)
        if found is None or not found.machine.installed:
            return
        del self._arriving[operator]
        self._engine.activate(operator)
        self._activated(self._engine.instances[operator])

    def coordinator_failed(self, node: NodeId) -> None:
        """Drops what a failed or departed coordinator had not sent in full: such a migration was not committed, and never will be.

        A complete state stays: the operators upstream may have been told that the operator runs here, and then their next batch shows it.
        """
        for operator, found in list(self._arriving.items()):
            if found.machine.coordinator == node and not found.machine.installed:
                self.drop(operator, found.machine.epoch)

    def drop(self, operator: OperatorId, epoch: int) -> None:
        """Drops an operator whose migration, of this epoch or an earlier one, has been abandoned."""
        found = self._arriving.get(operator)
        if found is not None and found.machine.epoch <= epoch:
            del self._arriving[operator]
            self._engine.reservations.end(operator)
            if found.machine.installed:
                self._engine.destroy(operator)

    # ------------------------------------------------------------------------------- prepared, and nothing heard since

    def _look_again(self) -> None:
        if self._look is None and self._arriving:
            self._look = self._host.call_at(self._host.now() + LOOK_S, self._look_now)

    def _look_now(self) -> None:
        self._look = None
        now = self._host.now()
        for operator, found in list(self._arriving.items()):
            machine = found.machine
            if now >= found.until:
                self.drop(operator, machine.epoch)
                continue
            if not machine.installed:
                self._engine.reservations.reserve(operator, 1, self._engine.empty_slots, now)  # may expire during a copy
            self._directory.reach(found.feeds, lambda problem: None)
            if machine.must_ask(now):
                ask = OutcomeAsk(operator=operator, epoch=machine.epoch)
                self._directory.request(machine.coordinator, ask, partial(self._heard, operator, found))
        self._look_again()

    def _heard(self, operator: OperatorId, found: _Arriving, result: Message | SbonError) -> None:
        if self._arriving.get(operator) is not found or not isinstance(result, Outcome):
            return
        if result.verdict == "committed":
            self.activate(operator)
        elif result.verdict == "abandoned":
            self.drop(operator, found.machine.epoch)
