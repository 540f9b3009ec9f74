"""Moves the operators of an agent that was told to leave to other hosts before the agent says goodbye, so that no answer is lost.

    STAYING       the agent has not been told to leave
    HANDING_OVER  it takes no operators, and moves away those that it has
    OVER          nothing is left that could move, or time is up: the agent says goodbye
    CLOSED        the agent has closed

    STAYING -> HANDING_OVER -> OVER -> CLOSED
       STAYING -> OVER            there is nothing to move, no time for it, or no other agent
       HANDING_OVER -> CLOSED     the agent closes meanwhile: no goodbye

Events and next phases are in `TABLE`. Each operator has a machine of its own for the way to its new host (`sbon.optimiser.attempts`):

    look -> seek a host -> migrate -> look ... -> nothing left that could move

Each operator goes to the host of least cost (`sbon.rearranging.seeking`). If that host refuses or fails, the next best is tried. An
operator whose neighbour is moving waits for it. A leaving host takes no operators, so hosts that leave together do not move operators to
each other. If no other host has room, the agent leaves at once, and its operators end.

Operators that are pinned here, and those that feed only pinned ones here, stay and end with the agent. `sbon leave` and the daemon start
the departure.
"""

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

import msgspec
import structlog

from sbon.errors import MigrationError
from sbon.execution.instance import Instance
from sbon.execution.life import State
from sbon.migration.coordinator import Phase as MigrationPhase
from sbon.migration.outcome import MigrationRecord
from sbon.optimiser.config import OptimiserConfig
from sbon.placement.config import PlacementConfig
from sbon.ports import Timer
from sbon.rearranging.reviewing import Surroundings
from sbon.rearranging.seeking import Seeking
from sbon.transitions import Transitions
from sbon.types import NodeId, OperatorId, QueryId

LOOK_S = 0.05
"""Seconds between two looks at the remaining operators, while candidates answer and operators move."""
TOGETHER_MAX = 4
"""Most operators that move at the same time. With more, each move takes longer, and operators that do not arrive in time are lost."""


class Phase(Enum):
    """The phase of an agent's departure."""

    STAYING = "staying"
    HANDING_OVER = "handing over"
    OVER = "over"
    CLOSED = "closed"


TABLE = Transitions(
    {
        Phase.STAYING: {"begin": (Phase.HANDING_OVER, Phase.OVER)},
        Phase.HANDING_OVER: {
            "look": (Phase.HANDING_OVER, Phase.OVER),
            "move_ended": (Phase.HANDING_OVER,),
            "time_is_up": (Phase.OVER,),
            "close": (Phase.CLOSED,),
        },
        Phase.OVER: {"close": (Phase.CLOSED,)},
        Phase.CLOSED: {},
    }
)
"""The methods of `Leaving` that each phase takes, and the phases that may follow. A second `begin` raises LocalProtocolError; other events
that a phase does not take come late, and change nothing."""


class Stayed(msgspec.Struct, frozen=True):
    """An operator that ends with this agent."""

    operator: OperatorId
    queries: tuple[QueryId, ...]
    reason: str


class Leaving:
    """Departure of one agent, up to its goodbye."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._host = around.host
        self._operators = around.operators
        self._migrations = around.migrations
        self._me = around.directory.me
        self._log = structlog.get_logger("leaving", node=self._me)
        self.phase = Phase.STAYING
        self._done: Callable[[], None] = lambda: None
        self._look_timer: Timer | None = None
        self._end_timer: Timer | None = None
        self._queries: dict[OperatorId, tuple[QueryId, ...]] = {}
        """Queries of all operators that have been here since the departure began."""
        self.moved: dict[OperatorId, NodeId] = {}
        """Operators that moved, with their new hosts; complete only at the end."""
        self.stayed: list[Stayed] = []

    @property
    def begun(self) -> bool:
        """Returns whether the agent has been told to leave."""
        return self.phase is not Phase.STAYING

    def begin(self, within_s: float, optimiser: OptimiserConfig, placement: PlacementConfig, done: Callable[[], None]) -> None:
        """Stops taking operators, moves away those that other hosts take, then calls `done`. Calls it at once if there is nothing to move,
        or no other agent.

        Parameters
        ----------
        within_s : seconds after which remaining operators stay; 0: all stay

        Raises
        ------
        LocalProtocolError
            The departure has begun already.
        """
        self._enter("begin", Phase.HANDING_OVER if within_s > 0 else Phase.OVER)
        self._operators.room.is_leaving = True
        self._done = done
        self._rng = self._host.rng.spawn(1)[0]
        self._seeking = Seeking(self._around, optimiser, placement, self._rng, self._look_soon)
        self._until = self._host.now() + within_s
        self._migrations.call_off_arrivals()
        if self.phase is Phase.OVER:
            self._say_goodbye("the agent was told to leave at once")
            return
        self.look()
        if self.phase is Phase.HANDING_OVER:
            self._log.info("leaving.handing_over", operators=sorted(i.id for i in self._left_to_move()), within_s=within_s)
            self._end_timer = self._host.call_at(self._until, self.time_is_up)

    def close(self) -> None:
        """Cancels the departure and its timers."""
        if TABLE.takes(self.phase, "close"):
            self._enter("close", Phase.CLOSED)
            self._cancel()

    def summary(self) -> dict[str, Any]:
        """Returns what has moved and what has stayed, for `sbon leave`."""
        return {"moved": len(self.moved), "stayed": [msgspec.to_builtins(each) for each in self.stayed]}

    def _enter(self, event: str, phase: Phase) -> None:
        self.phase = TABLE.after(self.phase, event, phase)

    def _cancel(self) -> None:
        for timer in (self._look_timer, self._end_timer):
            if timer is not None:
                timer.cancel()

    # --------------------------------------------------------------------------------------------------------- looking

    def look(self) -> None:
        """Begins the moves that are possible now, and finishes when nothing is left to wait for."""
        if not TABLE.takes(self.phase, "look"):
            return
        here = list(self._operators.instances.values())
        self._queries.update((instance.id, tuple(sorted(instance.users))) for instance in here)
        left = self._left_to_move()
        if not any(node != self._me for node in self._around.gossip.alive_labels()):
            self._finish("look", "there is no other agent")
            return
        if not (left or self._migrations.departing or self._migrations.arriving or any(map(self._is_owed, here))):
            self._finish("look", "")
            return
        for instance in left:
            self._set_out(instance)
        if len(self._seeking.moving()) < TOGETHER_MAX:
            self._seeking.seek([instance for instance in left if self._is_idle(instance.id)])
        if self._look_timer is not None:
            self._look_timer.cancel()
        self._look_timer = self._host.call_at(self._host.now() + LOOK_S, self.look)

    def _look_soon(self) -> None:
        self._host.call_soon(self.look)

    def time_is_up(self) -> None:
        """Ends the departure with what is left."""
        if TABLE.takes(self.phase, "time_is_up"):
            self._finish("time_is_up", "time was up")

    def _left_to_move(self) -> list[Instance]:
        """Returns the operators that may still move."""
        return [instance for instance in self._operators.instances.values() if not self._why_it_stays(instance)]

    def _why_it_stays(self, instance: Instance) -> str:
        """Returns the reason why an operator can never move; empty if there is none."""
        if not instance.movable:
            return "it is pinned"
        if instance.state in (State.FAILED, State.FINISHED):
            return f"it has {instance.state.value}"
        if not self._is_of_use(instance, set()):
            return "it feeds only operators that are pinned here"
        for node, neighbours in self._migrations.neighbours(instance).items():
            if self._around.gossip.departure_of(node):
                return f"its neighbour {neighbours[0]} was on {node}, which is gone"
        return self._seeking.attempt(instance.id).given_up

    def _is_of_use(self, instance: Instance, seen: set[OperatorId]) -> bool:
        """Tells whether any result of the operator ends on another host."""
        seen.add(instance.id)
        for output in instance.outputs.values():
            if output.node != self._me:
                return True
            consumer = self._operators.instances.get(output.link.target)
            if consumer is not None and consumer.movable and consumer.id not in seen and self._is_of_use(consumer, seen):
                return True
        return False

    def _is_owed(self, instance: Instance) -> bool:
        """Tells whether an operator has finished but consumers elsewhere still lack its last batches, which can no longer move."""
        if not instance.movable or instance.state is not State.FINISHED:
            return False
        waiting = [output.node for output in instance.outputs.values() if output.sender.rows_held and output.node != self._me]
        return not all(map(self._around.gossip.departure_of, waiting))

    def _is_idle(self, operator: OperatorId) -> bool:
        """Tells whether an operator could move now, but has no new host yet, and no candidates are being asked."""
        return self._seeking.attempt(operator).is_idle(self._host.now()) and self._migrations.may_migrate(operator)

    # ----------------------------------------------------------------------------------------------------------- moving

    def _set_out(self, instance: Instance) -> None:
        """Begins an operator's move, if it has a host to go to and neither it nor a neighbour here is moving."""
        operator, attempt, moving = instance.id, self._seeking.attempt(instance.id), self._seeking.moving()
        there = attempt.there
        near = {operator, *(i.link.source for i in instance.inputs.values()), *(o.link.target for o in instance.outputs.values())}
        if there is None or near & moving or len(moving) >= TOGETHER_MAX or not attempt.may_set_out(self._host.now()):
            return
        if not self._migrations.may_migrate(operator):
            return
        attempt.set_out()
        try:
            self._migrations.migrate(operator, there, f"{self._me} is leaving", partial(self.move_ended, there))
        except MigrationError as problem:
            attempt.hindered(str(problem))

    def move_ended(self, there: NodeId, record: MigrationRecord) -> None:
        """Handles the end of a move. Other operators of its group follow, or seek another host."""
        if not TABLE.takes(self.phase, "move_ended"):
            return
        attempt = self._seeking.attempt(record.operator)
        if record.committed:
            attempt.moved()
        else:
            attempt.last = f"its move to {there} was called off: {record.outcome}"
            if MigrationPhase.PREPARING.value in record.phases:
                attempt.refused_by(there)
                self._seeking.refused(there)
            else:
                attempt.called_off(there, self._host.now(), self._rng)
        self._look_soon()

    # ----------------------------------------------------------------------------------------------------------- ending

    def _finish(self, event: str, why: str) -> None:
        """Ends the departure on an event. `why` says why operators stayed that could have moved."""
        self._enter(event, Phase.OVER)
        self._cancel()
        self._say_goodbye(why)

    def _say_goodbye(self, why: str) -> None:
        """Reports what has moved and what stays, and lets the agent say goodbye."""
        for instance in self._operators.instances.values():
            self._queries[instance.id] = tuple(sorted(instance.users))
            if instance.state is not State.FINISHED or self._is_owed(instance):
                last = self._seeking.attempt(instance.id).last
                reason = self._why_it_stays(instance) or (f"{why}; {last}" if last else why)
                self.stayed.append(Stayed(instance.id, self._queries[instance.id], reason))
        for operator in self._queries:
            gone = self._around.flow.ends.place(operator)
            if operator not in self._operators.instances and gone is not None:
                self.moved[operator] = gone[0]
        self._log_queries()
        self._done()

    def _log_queries(self) -> None:
        """Logs one line for each query that had an operator here."""
        for query in sorted({query for queries in self._queries.values() for query in queries}):
            moved = {operator: there for operator, there in sorted(self.moved.items()) if query in self._queries[operator]}
            lost = {each.operator: each.reason for each in self.stayed if query in each.queries}
            if lost:
                self._log.warning("leaving.query_loses", query=query, lost=lost, moved=moved)
            elif moved:
                self._log.info("leaving.query_handed_over", query=query, moved=moved)
