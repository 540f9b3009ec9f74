"""The life of an operator on one host, as a table: the events that may happen in each state, the next state, and the engine's actions.

The table is data. `Life` looks changes up in it and is the only place where the state of an operator changes. An engine reports events to
`Life` and carries out the actions that it returns. [The page](../../docs/reference/life.md) and the unit tests are made from the table.

Whether an operator *waits* while it runs (for credit, for input, for the other input of a join) is no state: the engine computes that from
its links.
"""

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from sbon.errors import LocalProtocolError


class State(Enum):
    """The state of an operator on this host."""

    BUILDING = "building"
    """It is being made; batches wait."""
    WAITING = "waiting"
    """A sink that has been made, and waits until all operators of its query run."""
    RUNNING = "running"
    STALLED = "stalled"
    """A sink whose receiver or disk takes nothing at present, or an operator whose states find no room on disk; the same batch is offered
    again soon."""
    RESTING = "resting"
    """It finishes the batch under way and begins no other."""
    PAUSED = "paused"
    """It processes nothing, because it is about to move, or to be joined with another one."""
    FORKING = "forking"
    """A thread copies its state, which must not change meanwhile."""
    EXPORTED = "exported"
    """The record for the new host has been read: nothing may be added to the operator here until it has moved, or the move is called
    off."""
    PREPARED = "prepared"
    """It has arrived from another host and waits for the command to run."""
    FINISHING = "finishing"
    """A sink that has received every row and puts its result in place."""
    FINISHED = "finished"
    """Every input has ended and has been processed."""
    FAILED = "failed"
    GONE = "gone"
    """It is not on this host any more."""

    @property
    def told(self) -> str:
        """Returns the state for people and other hosts, who need no finer distinction.

        Examples
        --------
        >>> State.RESTING.told, State.RUNNING.told
        ('paused', 'running')
        """
        return _TOLD.get(self, self).value


_TOLD = {
    State.WAITING: State.BUILDING,
    State.RESTING: State.PAUSED,
    State.FORKING: State.PAUSED,
    State.EXPORTED: State.PAUSED,
}


class Event(Enum):
    """An event in the life of an operator."""

    BUILT = "built"
    SINK_BUILT = "built, a sink"
    BEGIN = "the query begins"
    RUN = "command to run, or the first batch"
    REST = "it is to rest"
    IDLE = "its batch is done"
    FORK = "its state is to be copied"
    FORKED = "its state has been copied"
    EXPORT = "its record is read"
    GO_ON = "it is to go on"
    HAND_OVER = "another host has it"
    NOT_TAKEN = "the far end, or the disk, takes nothing"
    OFFER = "the pause is over"
    ENDED = "all inputs have ended"
    GAVE_ALL = "the source has given everything"
    RESULT_DUE = "all inputs have ended, and a result is to be put in place"
    IN_PLACE = "the result is in its place"
    FAULT = "a fault"
    DESTROY = "nobody wants it any more"


class Do(Enum):
    """An action of the engine on a change of state."""

    START = "start the source, or take up work"
    TAKE_UP = "take up work"
    FINISH_BATCH = "finish the batch under way"
    TELL_RESTS = "tell the caller that it rests"
    TELL_CALLED_OFF = "tell the caller that it does not come to rest"
    PUT_IN_PLACE = "put the result in place"
    LET_GO = "close files and sockets"
    LET_GO_LATER = "close files and sockets once the result is in its place"
    ABANDON = "close files and sockets, and remove incomplete files"
    FREE = "free the state on a thread"
    TELL_FINISHED = "tell the agent that it has finished"
    TELL_FAILED = "tell the agent that it has failed"


class Row(NamedTuple):
    """One row of the table."""

    states: tuple[State, ...]
    event: Event
    next: State
    does: tuple[Do, ...] = ()
    ended: bool | None = None
    """True if every input must have ended for this row to apply, False if not; None where that makes no difference."""


_S, _E = State, Event
_BEFORE = (_S.BUILDING, _S.WAITING)
_AT_REST = (_S.PAUSED, _S.FORKING, _S.EXPORTED)
_FAULT = (Do.ABANDON, Do.FREE, Do.TELL_FAILED)

ROWS = (
    Row((_S.BUILDING,), _E.BUILT, _S.RUNNING, (Do.START,), ended=False),
    Row((_S.BUILDING,), _E.BUILT, _S.FINISHED, (Do.START,), ended=True),
    Row((_S.BUILDING,), _E.SINK_BUILT, _S.WAITING),
    Row((_S.WAITING,), _E.BEGIN, _S.RUNNING, (Do.START,)),
    Row((_S.PREPARED,), _E.RUN, _S.RUNNING, (Do.START,), ended=False),
    Row((_S.PREPARED,), _E.RUN, _S.FINISHED, (Do.START,), ended=True),
    Row((_S.RUNNING, _S.FINISHED), _E.REST, _S.RESTING, (Do.FINISH_BATCH,)),
    Row((_S.RESTING,), _E.IDLE, _S.PAUSED, (Do.TELL_RESTS,)),
    Row((_S.RESTING,), _E.GO_ON, _S.RUNNING, (Do.TELL_CALLED_OFF, Do.TAKE_UP), ended=False),
    Row((_S.RESTING,), _E.GO_ON, _S.FINISHED, (Do.TELL_CALLED_OFF, Do.TAKE_UP), ended=True),
    Row((_S.PAUSED,), _E.FORK, _S.FORKING),
    Row((_S.FORKING,), _E.FORKED, _S.RUNNING, (Do.TAKE_UP,), ended=False),
    Row((_S.FORKING,), _E.FORKED, _S.FINISHED, (Do.TAKE_UP,), ended=True),
    Row((_S.PAUSED,), _E.EXPORT, _S.EXPORTED),
    Row((_S.PAUSED, _S.EXPORTED), _E.GO_ON, _S.RUNNING, (Do.TAKE_UP,), ended=False),
    Row((_S.PAUSED, _S.EXPORTED), _E.GO_ON, _S.FINISHED, (Do.TAKE_UP,), ended=True),
    Row((_S.PAUSED, _S.EXPORTED, _S.FAILED), _E.HAND_OVER, _S.GONE, (Do.FREE,)),
    Row((_S.RUNNING, _S.FINISHING), _E.NOT_TAKEN, _S.STALLED),
    Row((_S.RESTING,), _E.NOT_TAKEN, _S.STALLED, (Do.TELL_CALLED_OFF,)),
    Row((_S.STALLED,), _E.OFFER, _S.RUNNING, (Do.TAKE_UP,), ended=False),
    Row((_S.STALLED,), _E.OFFER, _S.FINISHING, (Do.PUT_IN_PLACE,), ended=True),
    Row((_S.RUNNING,), _E.ENDED, _S.FINISHED, (Do.TELL_FINISHED,)),
    Row((_S.RUNNING,), _E.GAVE_ALL, _S.FINISHED, (Do.LET_GO, Do.TELL_FINISHED)),
    Row((_S.RUNNING,), _E.RESULT_DUE, _S.FINISHING, (Do.PUT_IN_PLACE,)),
    Row((_S.FINISHING,), _E.IN_PLACE, _S.FINISHED, (Do.TELL_FINISHED,)),
    Row((*_BEFORE, _S.RUNNING, _S.STALLED, _S.FINISHING, *_AT_REST, _S.PREPARED, _S.FINISHED), _E.FAULT, _S.FAILED, _FAULT),
    Row((_S.RESTING,), _E.FAULT, _S.FAILED, (*_FAULT, Do.TELL_CALLED_OFF)),
    Row((_S.FAILED,), _E.FAULT, _S.FAILED),
    Row(_BEFORE, _E.DESTROY, _S.GONE, (Do.ABANDON,)),
    Row((_S.RUNNING, _S.STALLED, *_AT_REST, _S.PREPARED, _S.FINISHED), _E.DESTROY, _S.GONE, (Do.LET_GO,)),
    Row((_S.FINISHING,), _E.DESTROY, _S.GONE, (Do.LET_GO_LATER,)),
    Row((_S.RESTING,), _E.DESTROY, _S.GONE, (Do.LET_GO, Do.TELL_CALLED_OFF)),
    Row((_S.FAILED,), _E.DESTROY, _S.GONE),
    Row((_S.GONE,), _E.FAULT, _S.GONE),
)
"""All changes of state. A fault after the first one, or after the operator has gone, changes nothing: a thread may come back late."""


def _entries() -> Iterator[tuple[tuple[State, Event, bool], tuple[State, tuple[Do, ...]]]]:
    for row in ROWS:
        for state in row.states:
            for ended in (False, True) if row.ended is None else (row.ended,):
                yield (state, row.event, ended), (row.next, row.does)


TABLE = dict(_entries())
"""Next state and actions, by state, event, and whether every input has ended."""


class Life:
    """State of one operator.

    Examples
    --------
    >>> life = Life()
    >>> life.on(Event.BUILT), life.state
    ((<Do.START: 'start the source, or take up work'>,), <State.RUNNING: 'running'>)
    >>> life.allows(Event.BUILT)
    False
    """

    def __init__(self, state: State = State.BUILDING) -> None:
        self.state = state
        self.reason = ""
        """Why it has failed or is stalled; empty in other states."""

    def allows(self, event: Event) -> bool:
        """Tells whether the table has an event for the present state. Ask it for news that may come late."""
        return (self.state, event, False) in TABLE

    def on(self, event: Event, *, ended: bool = False, reason: str = "") -> tuple[Do, ...]:
        """Changes the state; returns the actions, in order.

        Parameters
        ----------
        ended : whether every input has ended and been processed
        reason : why, for a fault or a stall

        Raises
        ------
        LocalProtocolError
            The table has no such event for the present state.
        """
        found = TABLE.get((self.state, event, ended))
        if found is None:
            raise LocalProtocolError(f"an operator that is {self.state.value} cannot take: {event.value}")
        before, (self.state, does) = self.state, found
        if self.state not in (before, State.GONE):
            self.reason = reason
        return does
