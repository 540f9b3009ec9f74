"""Chooses the plan of a query with `max_latency` among equivalent ones (`sbon.planning.selection`). `Submitting` calls it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from sbon.cost.books import Books
from sbon.errors import SbonError
from sbon.optimiser.placed import Placed
from sbon.query.plan import Plan
from sbon_agent.host import Host
from sbon_agent.queries.placing import Placing

if TYPE_CHECKING:
    from sbon.planning.selection import Selected


class Selecting:
    """Chooses plans by what they would cost where they would be placed."""

    def __init__(self, host: Host, placing: Placing, books: Books) -> None:
        self._host, self._placing, self._books = host, placing, books

    def select(self, plan: Plan, done: Callable[[Plan, str], None]) -> None:
        """Calls `done` with the plan to run and what was changed; with the same plan where it has no bound or cannot be placed."""
        from sbon.query.moves import moves

        if plan.max_latency_ms is None or not moves(plan):
            done(plan, "")
            return

        def placed(result: Placed | SbonError) -> None:
            if isinstance(result, SbonError):
                done(plan, "")  # the placement that follows says why
                return
            from sbon.planning.gathering import gathered
            from sbon.planning.selection import selected

            query = gathered(self._books, plan, result, self._host.now())
            self._host.execute(lambda: selected(query), chosen, rows=0)

        def chosen(result: "Selected | BaseException") -> None:
            if isinstance(result, BaseException):
                done(plan, f"the order of operators was not chosen, because it cannot be predicted: {result}")
                return
            done(result.plan, result.note)

        self._placing.place(msgspec.structs.replace(plan, max_latency_ms=None), placed, share=False, reserve=False)
