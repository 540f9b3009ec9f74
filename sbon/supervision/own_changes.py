"""Decides when a running query gets another plan that nobody has asked for (docs/replanning.md). A machine without I/O.

    with each round of reports: does the forecast want a number of instances that is off by `LEAST_SHARE` (`sbon.planning.resizing`), or
    another order of operators (`sbon.planning.ordering`), and has the query rested? -> `begun` -> `refused`, or the query has another plan

A query rests for `REST_S` after each change of its plan, whoever has asked for the change, and after a change that was refused. Another
step in the direction of the last change needs no rest, so that the query follows a rate that rises for long.
"""

from collections.abc import Sequence

LEAST_SHARE = 0.2
"""Least difference from the present number of instances that is worth a change, as a share of that number; smaller ones fit its spare
room."""
REST_S = 300.0
"""Time after a change of the plan in which the query begins no other change by itself, in seconds."""


class OwnChanges:
    """Changes of one query's plan that nobody has asked for."""

    def __init__(self) -> None:
        self.problem = ""
        """One line on why the last change was refused; empty if it was not."""
        self._told = ""
        self._asked: tuple[int, ...] = ()
        self._is_more = False
        self._rests_until_s = float("-inf")

    def is_worth_it(self, running: Sequence[int], wanted: Sequence[int]) -> bool:
        """Tells whether the wanted numbers differ enough from those that run."""
        return any(abs(number - now) >= LEAST_SHARE * now for now, number in zip(running, wanted, strict=True))

    def look(self, running: Sequence[int], wanted: Sequence[int], now: float) -> bool:
        """Returns whether to begin a change now."""
        goes_on = tuple(running) == self._asked and self._is_more == (sum(wanted) > sum(running)) and not self.problem
        return self.is_worth_it(running, wanted) and (goes_on or self.is_rested(now))

    def is_rested(self, now: float) -> bool:
        """Tells whether the last change is long enough ago for a change in another direction."""
        return now >= self._rests_until_s

    def begun(self, running: Sequence[int], wanted: Sequence[int], now: float) -> None:
        """Records that a change has begun."""
        self._asked, self._is_more, self.problem = tuple(wanted), sum(wanted) > sum(running), ""
        self.changing(now)

    def changing(self, now: float) -> None:
        """Records that the plan changes now, whoever has asked for it."""
        self._rests_until_s = now + REST_S

    def refused(self, problem: str, now: float) -> bool:
        """Records why a change is refused; returns whether that reason is new."""
        self.problem = problem
        self.changing(now)
        before, self._told = self._told, problem
        return before != problem
