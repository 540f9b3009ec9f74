"""Tracks the search for a new host of one operator whose host leaves. A machine without I/O.

    IDLE      it has no host to go to, and nobody is being asked; it may have to wait before the next attempt
    ASKING    candidates are being asked
    BOUND     it has a host to go to, and has not set out
    MOVING    its migration is under way
    MOVED     it runs on its new host
    GIVEN_UP  no host takes it

    IDLE -> ASKING -> BOUND -> MOVING -> MOVED
       ASKING -> IDLE        no candidate has room: it is sought alone if it was sought with a group; otherwise others are asked
       BOUND -> IDLE         the host has refused another operator
       MOVING -> IDLE        the host refuses it, or neighbours have called the move off for the third time: another host is sought
       MOVING -> BOUND       the move cannot begin, or a neighbour calls it off: the same again, after a pause
       IDLE -> IDLE          nobody is left to ask: hosts that its neighbours kept it from are tried again, or it is sought alone
       IDLE -> GIVEN_UP      nobody is left to ask, and there is nobody to try again

Events and next stages are in `TABLE`. `sbon.rearranging.seeking` has one attempt for each operator.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

import numpy as np

from sbon.placement.candidates import CandidateReport
from sbon.transitions import Transitions
from sbon.types import NodeId

STRIKES_MAX = 3
"""Number of moves called off by neighbours before another host is tried: perhaps they cannot reach this one."""
PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 1.0
"""Longest pause between two moves of one operator that its neighbours have called off, in seconds."""


class Stage(Enum):
    """The progress of the search for one operator's host."""

    IDLE = "idle"
    ASKING = "asking"
    BOUND = "bound"
    MOVING = "moving"
    MOVED = "moved"
    GIVEN_UP = "given up"


TABLE = Transitions(
    {
        Stage.IDLE: {"ask": (Stage.ASKING,), "nobody_left": (Stage.IDLE, Stage.GIVEN_UP)},
        Stage.ASKING: {"chosen": (Stage.IDLE, Stage.BOUND)},
        Stage.BOUND: {"set_out": (Stage.MOVING,), "refused_another": (Stage.BOUND, Stage.IDLE)},
        Stage.MOVING: {
            "hindered": (Stage.BOUND,),
            "refused_by": (Stage.IDLE,),
            "called_off": (Stage.BOUND, Stage.IDLE),
            "moved": (Stage.MOVED,),
        },
        Stage.MOVED: {},
        Stage.GIVEN_UP: {},
    }
)
"""The methods of `Attempt` that each stage takes, and the stages that may follow. All but `refused_another`, which is news for every
operator, raise LocalProtocolError in other stages."""


class Attempt:
    """The attempts for one operator: hosts that refused, the present choice, and when to try again."""

    def __init__(self) -> None:
        self.stage = Stage.IDLE
        self.there: NodeId | None = None
        """Host that the operator is to move to, moves to, or has moved to; None in other stages."""
        self.alone = False
        """No candidate has room for the whole group."""
        self.refused: set[NodeId] = set()
        """Hosts that have no room, do not answer, or could not take the operator."""
        self.unlucky: set[NodeId] = set()
        """Hosts that the operator's neighbours would not let it move to; they may be tried again later."""
        self.strikes = 0
        self.not_before_s = 0.0
        self.given_up = ""
        """Why it was given up; empty in other stages."""
        self.last = ""
        """Outcome of the last move."""

    def is_idle(self, now: float) -> bool:
        """Tells whether the operator has no host yet, is not being asked about, and need not wait."""
        return self.stage is Stage.IDLE and now >= self.not_before_s

    def may_set_out(self, now: float) -> bool:
        """Tells whether the operator has a host to go to, and need not wait."""
        return self.stage is Stage.BOUND and now >= self.not_before_s

    def ask(self) -> None:
        """Notes that candidates are being asked."""
        self._enter("ask", Stage.ASKING)

    def chosen(self, found: Sequence[NodeId], asked: Iterable[NodeId], reports: Mapping[NodeId, CandidateReport]) -> None:
        """Takes the hosts found among the candidates that were asked, best first; possibly none."""
        if found:
            self._enter("chosen", Stage.BOUND)
            self.there = found[0]
            return
        self._enter("chosen", Stage.IDLE)
        self.alone = self.alone or any(report.free_slots > 0 for report in reports.values())
        self.refused.update(node for node in asked if node not in reports or reports[node].free_slots <= 0)

    def nobody_left(self, group: int, now: float, rng: np.random.Generator) -> None:
        """Notes that there is nobody to ask about the operator, which belongs to a group of `group` operators."""
        if self.unlucky:
            self._enter("nobody_left", Stage.IDLE)
            self.unlucky.clear()
            self.pause(now, rng)
        elif group > 1:
            self._enter("nobody_left", Stage.IDLE)
            self.alone = True
        else:
            self._enter("nobody_left", Stage.GIVEN_UP)
            self.given_up = self.last or "no other agent has room for it"

    def set_out(self) -> None:
        """Notes that the operator's migration begins."""
        self._enter("set_out", Stage.MOVING)

    def hindered(self, problem: str) -> None:
        """Notes that the migration cannot begin now, and why."""
        self._enter("hindered", Stage.BOUND)
        self.last = problem

    def refused_by(self, there: NodeId) -> None:
        """Notes that the host cannot take the operator."""
        self._enter("refused_by", Stage.IDLE)
        self.refused.add(there)
        self.there = None

    def refused_another(self, there: NodeId) -> None:
        """Notes that a host has refused another operator. An operator that was to go there, and has not set out, seeks another host."""
        if TABLE.takes(self.stage, "refused_another") and self.there == there:
            self._enter("refused_another", Stage.IDLE)
            self.there = None

    def called_off(self, there: NodeId, now: float, rng: np.random.Generator) -> None:
        """Notes that a neighbour called the move off: it is moving itself, or does not reach the host."""
        self.strikes += 1
        if self.strikes % STRIKES_MAX == 0:
            self._enter("called_off", Stage.IDLE)
            self.unlucky.add(there)
            self.there = None
        else:
            self._enter("called_off", Stage.BOUND)
        self.pause(now, rng)

    def moved(self) -> None:
        """Notes that the operator runs on its new host."""
        self._enter("moved", Stage.MOVED)

    def pause(self, now: float, rng: np.random.Generator) -> None:
        """Sets a random pause, so that of two operators that wait for each other one goes first."""
        longest_s = min(PAUSE_S_MAX, PAUSE_S_MIN * 2.0**self.strikes)
        self.not_before_s = now + longest_s * float(rng.uniform(0.5, 1.0))

    def _enter(self, event: str, stage: Stage) -> None:
        self.stage = TABLE.after(self.stage, event, stage)
