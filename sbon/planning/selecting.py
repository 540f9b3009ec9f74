"""Has a query placed without its bound, and chooses among its plans there: how many instances its operators have (`sbon.planning.sizing`),
and under `max_latency` the order of its operators (`sbon.planning.selection`). No I/O."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from sbon.errors import LatencyBoundError, SbonError
from sbon.optimiser.placed import Placed
from sbon.query.plan import Build, Plan

if TYPE_CHECKING:
    from sbon.cost.placed_query import PlacedQuery
    from sbon.planning.selection import Selected


class Placing(Protocol):
    """Places queries on trial."""

    def place(self, plan: Plan, done: "Callable[[Placed | SbonError], None]", *, share: bool, reserve: bool) -> None:
        """Places a query; `done` gets the result."""

    def gather(self, plan: Plan, placed: Placed) -> "PlacedQuery":
        """Returns a placed query with the known figures of its parts."""


class Execute(Protocol):
    """Does work on an executor thread."""

    def __call__(self, work: Callable[[], Any], done: Callable[[Any], None], *, rows: int) -> None:
        """Calls `done` with the result or the exception of `work`."""


def select(plan: Plan, placing: Placing, execute: Execute, done: Callable[[Plan, str], None]) -> None:
    """Calls `done` with the plan to run and a note on its changes; with the given plan if that has no bound or cannot be placed."""
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


class Sized(msgspec.Struct, frozen=True):
    """Plans with the numbers of instances that were chosen."""

    plan: Plan
    larger: Plan | None = None
    """The plan with the most instances that there are cores for, if these are more: to be tried where `plan` is too late."""
    note: str = ""
    """Text for people on why the instances do not carry the rates; empty if they do."""


def size(
    plan: Plan,
    build: Build | None,
    placing: Placing,
    execute: Execute,
    done: Callable[[Sized | SbonError], None],
) -> None:
    """Calls `done` with the plan whose operators have the numbers of instances that rates and bound need (`instances = 'auto'`).

    Parameters
    ----------
    build : returns the plan with other numbers
    """
    if not plan.sizings or build is None:
        done(Sized(plan))
        return

    def placed(result: Placed | SbonError) -> None:
        if isinstance(result, SbonError):
            done(Sized(plan))  # the placement that follows says why
            return
        query = placing.gather(plan, result)
        execute(lambda: _sized(query, build), finished, rows=0)

    def finished(result: Sized | BaseException) -> None:
        if isinstance(result, BaseException) and not isinstance(result, SbonError):
            done(Sized(plan, note=f"one instance, because what the operators need cannot be predicted: {result}"))
            return
        done(result)

    placing.place(msgspec.structs.replace(plan, max_latency_ms=None), placed, share=False, reserve=False)


def _sized(query: "PlacedQuery", build: Build) -> Sized:
    """Returns the plans to try.

    Raises
    ------
    LatencyBoundError
        No number of instances keeps the query's bound, by costs that are known.
    """
    from sbon.planning.samples import known_shares
    from sbon.planning.sizing import chosen, with_measured_rates
    from sbon.query.estimate import estimate

    shares = known_shares(query.plan, lambda spec: query.statistics[spec.id])
    found = chosen(with_measured_rates(query))
    if found.problem and found.is_certain and query.plan.max_latency_ms is not None:
        raise LatencyBoundError(found.problem)
    plan = found.of(estimate(build(found.numbers, found.turns_us), shares=shares))
    most = tuple(max(one.most, number) for one, number in zip(found.sizings, found.numbers, strict=True))
    larger = None if most == found.numbers or query.plan.max_latency_ms is None else found.of(estimate(build(most), shares=shares))
    return Sized(plan, larger, found.problem)


def with_any_number(problem: SbonError) -> SbonError:
    """Returns why a query is too late that was refused both with the chosen and with the greatest number of instances."""
    return LatencyBoundError(f"{problem}; more instances do not help")


def exchanged_note(plan: Plan, other: Plan) -> str:
    """Returns a note for a statement's answer on the order that runs in place of the plan's own; empty if they are equal."""
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
