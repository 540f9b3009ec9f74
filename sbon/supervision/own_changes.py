"""Decides when a running query gets another plan without a person (docs/replanning.md). A machine without I/O.

    looked at with each round of reports -> begin a change, if another number has been wanted (`sbon.planning.resizing`) that is off by
    `LEAST_SHARE`, or another order (`sbon.planning.ordering`), and the query has rested -> `begun` -> `refused`, or it has another plan

A query rests for `REST_S` after each change of its plan, whoever has asked for it, and after one that did not come. More of what has just
helped needs no rest: a rate that rises for long is followed.
"""

from collections.abc import Sequence

LEAST_SHARE = 0.2
"""Least part of the present number by which another one differs that is worth a change: up to there, the room of the present one serves."""
REST_S = 300.0
"""Time without another change of its own, in seconds."""


class OwnChanges:
    """The changes that one query gets without a person."""

    def __init__(self) -> None:
        self.problem = ""
        """One line on why the last one did not come; empty if it did."""
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
        """Tells whether the last change is long enough ago for one that is no more of the same."""
        return now >= self._rests_until_s

    def begun(self, running: Sequence[int], wanted: Sequence[int], now: float) -> None:
        """Takes that a change has begun."""
        self._asked, self._is_more, self.problem = tuple(wanted), sum(wanted) > sum(running), ""
        self.changing(now)

    def changing(self, now: float) -> None:
        """Takes that the plan changes now, whoever has asked for it."""
        self._rests_until_s = now + REST_S

    def refused(self, problem: str, now: float) -> bool:
        """Takes why a change does not come; returns whether that has not been told before."""
        self.problem = problem
        self.changing(now)
        before, self._told = self._told, problem
        return before != problem
