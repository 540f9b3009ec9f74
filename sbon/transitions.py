"""Tables of transitions: for each state of a machine, the events that it takes there, and the states that may follow.

A machine asks its table before it acts. An event that the table does not have is late, repeated, or meant for somebody else, and changes
nothing. Tests step through the same table, state by state and event by event.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from sbon.errors import LocalProtocolError

S = TypeVar("S", bound=Enum)


class Transitions(Generic[S]):
    """The table of one kind of machine.

    Examples
    --------
    >>> class Door(Enum):
    ...     OPEN = "open"
    ...     SHUT = "shut"
    >>> table = Transitions({Door.OPEN: {"push": (Door.SHUT,)}, Door.SHUT: {"push": (Door.OPEN, Door.SHUT)}})
    >>> table.takes(Door.OPEN, "pull"), table.after(Door.OPEN, "push", Door.SHUT)
    (False, <Door.SHUT: 'shut'>)
    """

    def __init__(self, rows: Mapping[S, Mapping[str, tuple[S, ...]]]) -> None:
        self.rows = rows

    @property
    def events(self) -> frozenset[str]:
        """Returns all events that any state takes."""
        return frozenset(event for row in self.rows.values() for event in row)

    def takes(self, state: S, event: str) -> bool:
        """Tells whether an event means anything in a state."""
        return event in self.rows[state]

    def after(self, state: S, event: str, following: S) -> S:
        """Returns the following state.

        Raises
        ------
        LocalProtocolError
            The table does not have this transition.
        """
        if following not in self.rows[state].get(event, ()):
            raise LocalProtocolError(f"{event} leads from {state.value} to {following.value}, which is no transition")
        return following
