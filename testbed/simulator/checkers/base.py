"""The interface of checkers of a simulated seed."""

from sbon_testbed.simulator.run_state import Run


class Checker:
    """Watches one property of a run. A problem is a sentence; an empty text means that there is none."""

    after_drop = False
    """True if convergence is awaited after the queries that go on have been dropped."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def look(self) -> str:
        """Returns what is wrong now; called many times, during the faults and after."""
        return ""

    def converged(self) -> str:
        """Returns what has not converged yet; called after the faults until it is empty, or the time is up."""
        return ""

    def end(self) -> str:
        """Returns what is wrong once all has converged."""
        return ""
