"""Places queries without starting them, for people who ask how the queries would run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import structs

from sbon.errors import LatencyBoundError, QueryError, SbonError
from sbon.optimiser.placed import Placed
from sbon.planning.samples import ask_samples
from sbon.planning.selecting import Sized, exchanged_note, in_order_of, select, size, with_any_number
from sbon.queries.parts import QueryParts
from sbon.query.places import located
from sbon.query.plan import Plan
from sbon.supervision.statements import Prepared, as_refusal

if TYPE_CHECKING:
    from sbon.cost.placed_query import PlacedQuery

Done = Callable[[Any], None]
"""Called with a result, or with the SbonError that prevented it."""
Work = Callable[[Plan, Placed, "PlacedQuery"], dict[str, Any]]
"""Answers a question about a placed query, on an executor thread."""


def dry_run(parts: QueryParts, effects: list[Prepared], work: Work, done: Done, *, carry: bool) -> None:
    """Places the last query of some statements; `done` gets the result of `work` for it.

    Parameters
    ----------
    carry : whether to place the query so that it carries its profile, with another order of operators if needed
    """
    effect = next((effect for effect in reversed(effects) if effect.plan is not None), None)
    if effect is None or effect.plan is None:
        done(QueryError("there is no query to explain", hint="give a SELECT or a CREATE SINK"))
        return
    given, build, host, placing = effect.plan, effect.build, parts.host, parts.placing

    def place(plan: Plan, *said: str, larger: Plan | None = None) -> None:
        _DryRun(parts, effect, plan, [*effect.notes, *filter(None, said)], work, done, carry=carry, larger=larger).place()

    def sized(found: Sized | SbonError) -> None:
        if not isinstance(found, SbonError):
            select(found.plan, placing, host.execute, lambda plan, text: place(plan, found.note, text, larger=found.larger))
        elif given.max_latency_ms is None:
            done(located(found, effect.places))
        else:
            place(without_bound(given), refused(found))

    ask_samples(given, placing.cost_store, parts.directory, host.now, lambda expected: size(expected, build, placing, host.execute, sized))


class _DryRun:
    """One query that is being placed.

    Parameters
    ----------
    notes : notes about the query for the person who asks
    larger : the same query with more instances, tried if the latency of `plan` would exceed its bound
    """

    def __init__(
        self,
        parts: QueryParts,
        effect: Prepared,
        plan: Plan,
        notes: list[str],
        work: Work,
        done: Done,
        *,
        carry: bool,
        larger: Plan | None,
    ) -> None:
        self._host, self._placing, self._places = parts.host, parts.placing, effect.places
        self._plan, self._said, self._notes = plan, tuple(notes), notes
        self._work, self._done, self._carry, self._larger = work, done, carry, larger
        self._before: SbonError | None = None

    def place(self) -> None:
        if self._carry and self._plan.profile:
            self._placing.place(self._plan, self._carrying, reserve=False, carry=True)
        else:
            self._placing.place(self._plan, self._placed, reserve=False)

    def _carrying(self, result: Placed | SbonError) -> None:
        if isinstance(result, SbonError):
            self._notes.append(refused(result))
            self._placing.place(self._plan, self._placed, reserve=False)
            return
        if changed := exchanged_note(self._plan, result.plan):
            self._notes.append(changed)
        self._placed(result)

    def _placed(self, result: Placed | SbonError) -> None:
        if isinstance(result, LatencyBoundError) and self._larger is not None:
            self._plan, self._larger, self._before, self._notes = self._larger, None, result, list(self._said)
            self.place()
        elif isinstance(result, SbonError):
            self._too_late(with_any_number(self._before) if self._before is not None else result)
        else:
            self._answer(result)

    def _too_late(self, problem: SbonError) -> None:
        """Places a query that cannot keep its bound without the bound, with a note. Refuses a query that has no bound."""

        def unbounded(result: Placed | SbonError) -> None:
            if isinstance(result, SbonError):
                self._done(located(problem, self._places))
                return
            self._notes.append(refused(problem))
            self._answer(result)

        if self._plan.max_latency_ms is None:
            self._done(located(problem, self._places))
        else:
            self._placing.place(without_bound(self._plan), unbounded, reserve=False)

    def _answer(self, result: Placed) -> None:
        self._notes.extend(filter(None, (result.note,)))
        query = self._placing.gather(self._plan, result)

        def worked(found: dict[str, Any] | BaseException) -> None:
            if isinstance(found, BaseException):
                self._done(as_refusal(found, self._places))
            else:
                self._done({**found, "notes": [*self._notes, *found.get("notes", ())]})

        self._host.execute(lambda: self._work(result.plan, result, in_order_of(result, self._plan, query)), worked, rows=0)


def without_bound(plan: Plan) -> Plan:
    """Returns the plan without its bound on the latency."""
    return structs.replace(plan, max_latency_ms=None)


def refused(problem: SbonError) -> str:
    """Returns the note that a query would be refused if it were submitted."""
    return f"it would be refused: {problem}"
