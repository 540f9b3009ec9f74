"""Tracks attempts to find a new host for an operator whose host leaves. A machine without I/O.

idle -> asking -> bound for a host -> moved
  ^        |              |-- the host refuses: another is sought
  |        |              |-- neighbours call the move off: the same again after a pause, at each third time another host
  |        |-- no candidate has room: alone, if it was sought for a group; otherwise others are asked
  |-- nobody is left to ask: those that were only unlucky are tried again; else given up
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from sbon.placement.candidates import CandidateReport
from sbon.types import NodeId

STRIKES_MAX = 3
"""Number of moves called off by neighbours before another host is tried: perhaps they cannot reach this one."""
PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 1.0
"""Longest pause between two moves of one operator that its neighbours have called off, in seconds."""


class Attempt:
    """The attempts for one operator: hosts that refused, the present choice, and when to try again."""

    def __init__(self) -> None:
        self.there: NodeId | None = None
        """Host that the operator is to move to."""
        self.asking = False
        self.alone = False
        """No candidate has room for the whole group."""
        self.refused: set[NodeId] = set()
        """Hosts that have no room, do not answer, or could not take the operator."""
        self.unlucky: set[NodeId] = set()
        """Hosts that the operator's neighbours would not let it move to; they may be tried again later."""
        self.strikes = 0
        self.not_before_s = 0.0
        self.given_up = ""
        self.last = ""
        """Outcome of the last move."""

    def is_idle(self, now: float) -> bool:
        """Tells whether the operator has no host yet, is not being asked about, and need not wait."""
        return not self.asking and self.there is None and now >= self.not_before_s

    def chosen(self, found: Sequence[NodeId], asked: Iterable[NodeId], reports: Mapping[NodeId, CandidateReport]) -> None:
        """Takes the hosts found among the candidates that were asked, best first; possibly none."""
        self.asking = False
        if found:
            self.there = found[0]
            return
        self.alone = self.alone or any(report.free_slots > 0 for report in reports.values())
        self.refused.update(node for node in asked if node not in reports or reports[node].free_slots <= 0)

    def nobody_left(self, group: int, now: float, rng: np.random.Generator) -> None:
        """Notes that there is nobody to ask about the operator, which belongs to a group of `group` operators."""
        if self.unlucky:
            self.unlucky.clear()
            self.pause(now, rng)
        elif group > 1:
            self.alone = True
        else:
            self.given_up = self.last or "no other agent has room for it"

    def refused_by(self, there: NodeId) -> None:
        """Notes that a host cannot take the operator."""
        self.refused.add(there)
        self.there = None

    def called_off(self, there: NodeId, now: float, rng: np.random.Generator) -> None:
        """Notes that a neighbour called the move off: it is moving itself, or does not reach the host."""
        self.strikes += 1
        self.pause(now, rng)
        if self.strikes % STRIKES_MAX == 0:
            self.unlucky.add(there)
            self.there = None

    def pause(self, now: float, rng: np.random.Generator) -> None:
        """Sets a random pause, so that of two operators that wait for each other one goes first."""
        longest_s = min(PAUSE_S_MAX, PAUSE_S_MIN * 2.0**self.strikes)
        self.not_before_s = now + longest_s * float(rng.uniform(0.5, 1.0))
