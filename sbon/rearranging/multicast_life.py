"""The life of one multicast on one host, beyond that of any operator. A machine without I/O.

    PROPOSED   candidates are asked whether a multicast of an operator here pays
    TELLING    it has been made beside the operator that feeds it, and its consumers are told of it
    WAITING    its move to its place could not begin, or was called off; it tries again after a pause
    MOVING     its migration to its place is under way
    STANDING   it passes rows on here
    COMPARING  it has one consumer left, and hosts are asked for the RTTs of the direct way and of the way through it
    RETURNING  its migration back to the host of its feeder is under way
    GONE       it was not made, or it has left this host or ended

    PROPOSED -> TELLING -> MOVING -> GONE, and STANDING on its new host
       PROPOSED -> GONE                    the answers speak against it, or something has changed meanwhile
       MOVING -> WAITING -> MOVING         the move is called off; another attempt
       TELLING or WAITING -> STANDING      time is up: it stays beside its feeder, where it is folded
    STANDING -> COMPARING -> RETURNING -> GONE, and STANDING on the host of its feeder
       COMPARING -> STANDING               the direct way is longer, or not known, or something has changed meanwhile
       RETURNING -> STANDING               the move back could not begin, or was called off
       STANDING or COMPARING -> GONE       beside its feeder it is folded
       any -> GONE                         another part of the agent has moved or ended it

Events and next stages are in `TABLE`. That it comes to rest before it is folded is part of the life of any operator
(`sbon.execution.life`); until then it stands, since it runs on if it cannot be folded now.
"""

from enum import Enum

from sbon.transitions import Transitions
from sbon.types import NodeId

JOURNEY_S = 60.0
"""Seconds after which a new multicast that has not left is folded, because its consumers do not answer, or no host takes it."""


class Stage(Enum):
    """The stage of a multicast on this host."""

    PROPOSED = "proposed"
    TELLING = "telling"
    WAITING = "waiting"
    MOVING = "moving"
    STANDING = "standing"
    COMPARING = "comparing"
    RETURNING = "returning"
    GONE = "gone"


UNDER_WAY = (Stage.TELLING, Stage.WAITING, Stage.MOVING)
"""Stages from the making of a multicast until it has left for its place."""
_REMOVED = {"removed": (Stage.GONE,)}

TABLE = Transitions(
    {
        Stage.PROPOSED: {"made": (Stage.TELLING,), **_REMOVED},
        Stage.TELLING: {"set_out": (Stage.MOVING, Stage.STANDING), "expire": (Stage.TELLING, Stage.STANDING), **_REMOVED},
        Stage.WAITING: {"set_out": (Stage.MOVING, Stage.STANDING), "expire": (Stage.WAITING, Stage.STANDING), **_REMOVED},
        Stage.MOVING: {"stopped": (Stage.WAITING,), "left": (Stage.GONE,), **_REMOVED},
        Stage.STANDING: {"compare": (Stage.COMPARING,), "folded": (Stage.GONE,), **_REMOVED},
        Stage.COMPARING: {"compared": (Stage.STANDING, Stage.RETURNING), "folded": (Stage.GONE,), **_REMOVED},
        Stage.RETURNING: {"stopped": (Stage.STANDING,), "left": (Stage.GONE,), **_REMOVED},
        Stage.GONE: {},
    }
)
"""The methods of `MulticastLife` that each stage takes, and the stages that may follow. `made`, `compare` and `folded` raise
LocalProtocolError in other stages. All others may come late, and change nothing then."""


class MulticastLife:
    """The life of one multicast on this host. One that has arrived here begins as STANDING.

    Examples
    --------
    >>> life = MulticastLife()
    >>> life.made("ams", "saves 40 %", 10.0)
    >>> life.set_out(11.0), life.stage
    (True, <Stage.MOVING: 'moving'>)
    """

    def __init__(self, stage: Stage = Stage.PROPOSED) -> None:
        self.stage = stage
        self.there: NodeId = ""
        """Destination of a new multicast."""
        self.reason = ""
        """Why it is to move there."""
        self._until = 0.0

    @property
    def is_under_way(self) -> bool:
        """Returns whether it is new, and has not left for its place."""
        return self.stage in UNDER_WAY

    def takes(self, event: str) -> bool:
        """Tells whether an event means anything now."""
        return TABLE.takes(self.stage, event)

    def made(self, there: NodeId, reason: str, now: float) -> None:
        """Notes that it has been made, is to move to `there`, and why."""
        self._enter("made", Stage.TELLING)
        self.there, self.reason, self._until = there, reason, now + JOURNEY_S

    def set_out(self, now: float) -> bool:
        """Begins an attempt to leave. All consumers must know it. Returns False, and stays here, if its time is up."""
        if not self.takes("set_out"):
            return False
        self._enter("set_out", Stage.STANDING if now > self._until else Stage.MOVING)
        return self.stage is Stage.MOVING

    def expire(self, now: float) -> None:
        """Ends the attempts to leave if its time is up."""
        if self.takes("expire"):
            self._enter("expire", Stage.STANDING if now > self._until else self.stage)

    def stopped(self) -> None:
        """Notes that its move could not begin, or was called off."""
        if self.takes("stopped"):
            self._enter("stopped", Stage.WAITING if self.stage is Stage.MOVING else Stage.STANDING)

    def left(self) -> None:
        """Notes that it has moved to another host."""
        if self.takes("left"):
            self._enter("left", Stage.GONE)

    def compare(self) -> None:
        """Notes that hosts are asked for the RTTs of the direct way and of the way through it."""
        self._enter("compare", Stage.COMPARING)

    def compared(self, *, returns: bool) -> None:
        """Notes that the hosts have answered; `returns`: it moves back now."""
        if self.takes("compared"):
            self._enter("compared", Stage.RETURNING if returns else Stage.STANDING)

    def folded(self) -> None:
        """Notes that its feeder has taken its outputs back."""
        self._enter("folded", Stage.GONE)

    def removed(self) -> None:
        """Notes that it is not made, or that another part of the agent has moved or ended it."""
        if self.takes("removed"):
            self._enter("removed", Stage.GONE)

    def _enter(self, event: str, stage: Stage) -> None:
        self.stage = TABLE.after(self.stage, event, stage)
