"""Runs a case under faults with its checkers: a phase with faults, and a phase without, in which everything must converge."""

import traceback
from collections.abc import Callable, Sequence

from sbon_testbed.simulator.case import Case
from sbon_testbed.simulator.checkers.base import CaseChecker
from sbon_testbed.simulator.faults.schedule import Faults

LOOK_S = 0.1
"""Virtual seconds between two calls of the checkers."""
CONVERGED_S = 180.0
"""Virtual seconds after the faults within which everything must converge."""


class FoundError(Exception):
    """A checker has found an error."""


def problem_of(go: Callable[[], None]) -> str:
    """Runs a seed and describes its error; empty if there is none. An exception of an agent is an error of the seed."""
    try:
        go()
    except FoundError as found:
        return str(found)
    except Exception as error:
        at = "".join(traceback.format_exception(error)[-4:]).rstrip()
        return f"{type(error).__name__}: {error}\n{at}"
    return ""


class Trial:
    """A case, its faults and its checkers. All methods raise `FoundError` once a checker has found an error.

    Parameters
    ----------
    watch : called whenever time has passed, before the checkers look
    converged_s : virtual seconds within which everything must converge
    """

    def __init__(
        self,
        case: Case,
        faults: Faults,
        checkers: Sequence[CaseChecker],
        watch: Callable[[], None] = lambda: None,
        look_s: float = LOOK_S,
        converged_s: float = CONVERGED_S,
    ) -> None:
        self._case, self._faults, self._checkers = case, faults, checkers
        self._watch, self._look_s, self._converged_s = watch, look_s, converged_s

    def trouble(self, ended: Callable[[], bool]) -> None:
        """Lets faults happen until the condition holds."""
        world, faults = self._case.world, self._faults
        faults.begin()
        while not ended():
            self.run(min(self._look_s, max(0.0, faults.next_s - world.now)))
            faults.step()

    def converge(self) -> None:
        """Waits until everything has converged that must while queries run, and lets the checkers judge the end."""
        self._await([checker for checker in self._checkers if not checker.after_drop])
        for checker in self._checkers:
            self._judge(checker.end())

    def converge_without_queries(self) -> None:
        """Waits until everything has converged that must once all queries have ended or been dropped."""
        self._await([checker for checker in self._checkers if checker.after_drop])

    def run(self, seconds: float) -> None:
        """Lets time pass without faults, then calls the checkers."""
        self._case.world.run(seconds)
        self._case.tell_migrations()
        self._faults.watch_leaving()
        self._watch()
        for checker in self._checkers:
            self._judge(checker.look())

    def _await(self, checkers: list[CaseChecker]) -> None:
        until = self._case.world.now + self._converged_s
        for checker in checkers:
            while problem := checker.converged():
                if self._case.world.now >= until:
                    raise FoundError(f"not converged {self._converged_s:g} s after the faults: {problem}")
                self.run(5 * LOOK_S)

    def _judge(self, problem: str) -> None:
        if problem:
            raise FoundError(problem)
