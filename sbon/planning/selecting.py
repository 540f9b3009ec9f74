"""Has a query with `max_latency` placed without its bound, and chooses among its plans there (`sbon.planning.selection`). No I/O."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from sbon.errors import SbonError
from sbon.optimiser.placed import Placed
from sbon.query.plan import Plan

if TYPE_CHECKING:
    from sbon.cost.placed_query import PlacedQuery
    from sbon.planning.selection import Selected


class Placing(Protocol):
    """Imagines placements."""

    def place(self, plan: Plan, done: "Callable[[Placed | SbonError], None]", *, share: bool, reserve: bool) -> None:
        """Places a query; `done` gets the result."""

    def gather(self, plan: Plan, placed: Placed) -> "PlacedQuery":
        """Returns a placed query with what is known of its parts."""


class Execute(Protocol):
    """Does work on an executor thread."""

    def __call__(self, work: "Callable[[], Selected]", done: "Callable[[Selected | BaseException], None]", *, rows: int) -> None:
        """Calls `done` with what `work` returns or raises."""


def select(plan: Plan, placing: Placing, execute: Execute, done: Callable[[Plan, str], None]) -> None:
    """Calls `done` with the plan to run and what was changed; with the same plan where it has no bound or cannot be placed."""
    from sbon.query.moves import moves

    if plan.max_latency_ms is None or not moves(plan):
        done(plan, "")
        return

    def placed(result: Placed | SbonError) -> None:
        if isinstance(result, SbonError):
            done(plan, "")  # the placement that follows says why
            return
        from sbon.planning.selection import selected

        query = placing.gather(plan, result)
        execute(lambda: selected(query), chosen, rows=0)

    def chosen(result: "Selected | BaseException") -> None:
        if isinstance(result, BaseException):
            done(plan, f"the order of operators was not chosen, because it cannot be predicted: {result}")
            return
        done(result.plan, result.note)

    placing.place(msgspec.structs.replace(plan, max_latency_ms=None), placed, share=False, reserve=False)


def exchanged_note(plan: Plan, other: Plan) -> str:
    """Returns what a statement's answer says of the order that runs in the place of the plan's own; empty if they are the same."""
    if not plan.profile or plan.links == other.links:
        return ""
    from sbon.planning.selection import exchanged

    changed = ", ".join(exchanged(plan, other))
    return f"operators exchanged to carry the profile: {changed}" if changed else ""


def in_order_of(placed: Placed, plan: Plan, query: "PlacedQuery") -> "PlacedQuery":
    """Returns a placed query in the order in which it was placed, with the costs that its operators have in the order of `plan`."""
    if placed.plan.links == plan.links:
        return query
    from sbon.planning.selection import in_order

    return in_order(query, placed.plan)
