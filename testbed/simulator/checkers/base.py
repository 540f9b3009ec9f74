"""The interface of checkers of a simulated seed."""

from sbon_testbed.simulator.case import Case
from sbon_testbed.simulator.run_state import Run


class CaseChecker:
    """Watches one property of any overlay under faults. A problem is a sentence; an empty text means no problem."""

    after_drop = False
    """True if `converged` is called only after all queries that still run have been dropped."""

    def __init__(self, run: Case) -> None:
        self.run = run

    def look(self) -> str:
        """Returns a present problem; called many times, during the faults and after them."""
        return ""

    def converged(self) -> str:
        """Returns something that has not converged yet; called after the faults until it is empty, or the time is up."""
        return ""

    def end(self) -> str:
        """Returns a problem once everything has converged."""
        return ""


class Checker(CaseChecker):
    """Watches one property of a run of `sbon testbed simulate`, whose workload and right answers it knows."""

    run: Run

    def __init__(self, run: Run) -> None:
        super().__init__(run)
